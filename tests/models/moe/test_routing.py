"""The capacity of an expert, and options that make no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.models.moe.routing import Routing


@pytest.mark.parametrize(
    ("tokens", "experts", "factor", "slots"),
    [
        (128, 8, 1.25, 20),
        (128, 8, 2.5, 40),
        (128, 64, 1.25, 3),
        (65, 128, 1.25, 1),  # 0.63 of a token: without a minimum, every token would be dropped
        (10, 11, 1.1, 1),
        (4, 2, 100.0, 4),
        (1, 1, 1.25, 1),
    ],
)
def test_capacity(tokens: int, experts: int, factor: float, slots: int) -> None:
    assert Routing(experts=experts, capacity_factor=factor).capacity(tokens) == slots


@given(st.integers(1, 500), st.integers(1, 300), st.floats(0.01, 8))
def test_every_expert_has_a_slot_and_none_more_than_tokens(
    tokens: int, experts: int, factor: float
) -> None:
    assert 1 <= Routing(experts=experts, capacity_factor=factor).capacity(tokens) <= tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts_per_token": 0}, "`experts_per_token` must be at least 1 .* not 0"),
        ({"experts_per_token": 5}, "at most `experts`, 4, not 5"),
        ({"capacity_factor": 0.0}, "`capacity_factor` must be above 0, not 0.0"),
        ({"balance_loss": -1.0}, "`balance_loss` must be at least 0, not -1.0"),
        ({"z_loss": float("nan")}, "`z_loss` must be at least 0, not nan"),
    ],
)
def test_wrong_options_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing(experts=4, **changes)
