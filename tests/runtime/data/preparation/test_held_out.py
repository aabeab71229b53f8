"""The split covers the tokens, without overlap, with something on both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.preparation.held_out import hold_out


@given(num_tokens=st.integers(0, 10**12), eval_fraction=st.floats(0.001, 0.999))
def test_ranges_cover_the_stream_in_turn(num_tokens: int, eval_fraction: float) -> None:
    try:
        parts = hold_out(num_tokens, eval_fraction=eval_fraction)
    except DataError:
        assert num_tokens * eval_fraction < 1 or num_tokens == 0
        return
    position = 0
    for train, held_out in zip(parts.train, parts.eval, strict=True):
        assert position == train.start < train.stop == held_out.start < held_out.stop
        position = held_out.stop
    assert position == num_tokens
    num_held_out = sum(map(len, parts.eval))
    assert num_tokens * eval_fraction - 9 < num_held_out <= num_tokens * eval_fraction + 1e-3


def test_a_large_stream_is_held_out_in_eight_places() -> None:
    assert len(hold_out(10**6, eval_fraction=0.1).eval) == 8


@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_too_short(num_tokens: int) -> None:
    with pytest.raises(DataError, match=f"`source` must be long enough .* has {num_tokens} tokens"):
        hold_out(num_tokens, eval_fraction=0.1)


@pytest.mark.parametrize("eval_fraction", [-0.1, 1.0, float("nan")])
def test_fractions_that_leave_one_side_empty(eval_fraction: float) -> None:
    with pytest.raises(DataError, match="`eval_fraction` must be from 0 to below 1"):
        hold_out(100, eval_fraction=eval_fraction)
