"""Interleaved 1F1B: its closed forms, and what it refuses."""

from itertools import product

import pytest

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    check,
    eager_one_f_one_b,
    forward_only,
    interleaved,
    lower,
    peak_live,
    timetable,
)

SHAPES = [(p, m, v) for p, m, v in product(range(1, 7), range(1, 13), range(1, 4)) if m % p == 0]


@pytest.mark.parametrize(("p", "m", "v"), SHAPES)
def test_bubble_and_peaks_are_the_closed_forms(p: int, m: int, v: int):
    schedule = interleaved(num_stages=p * v, num_microbatches=m, num_chunks=v)
    times = timetable(schedule, forward_s=(1.0,) * (p * v), backward_s=(2.0,) * (p * v))
    assert times.bubble_fraction == pytest.approx((p - 1) / (v * m + p - 1))
    warmups = (2 * (p - rank) - 1 + (v - 1) * p for rank in range(p))
    assert peak_live(schedule) == tuple(min(v * m, warmup) for warmup in warmups)


@pytest.mark.parametrize(("p", "m", "v"), SHAPES)
def test_nothing_waits_for_ever(p: int, m: int, v: int):
    schedule = interleaved(num_stages=p * v, num_microbatches=m, num_chunks=v)
    check(lower(schedule, tied=True, num_replicas=2))


@pytest.mark.parametrize(("p", "m", "v"), list(product((1, 2, 3, 5), (1, 2, 5, 6), (1, 2, 3))))
def test_an_evaluation_takes_any_number_of_microbatches(p: int, m: int, v: int):
    schedule = forward_only(num_stages=p * v, num_microbatches=m, num_chunks=v)
    check(lower(schedule, tied=True, num_replicas=2))
    assert peak_live(schedule) == (0,) * p


def test_one_chunk_is_eager_1f1b():
    made = interleaved(num_stages=3, num_microbatches=6, num_chunks=1)
    assert made == eager_one_f_one_b(num_stages=3, num_microbatches=6)


@pytest.mark.parametrize(
    ("num_stages", "num_microbatches", "num_chunks", "words"),
    [
        (6, 4, 2, "`num_microbatches` .4. must be a multiple of the 3 ranks"),
        (6, 6, 4, "`num_stages` .6. must be a multiple of `num_chunks` .4."),
        (6, 6, 0, "`num_chunks` .0."),
        (0, 6, 1, "`num_stages` .0."),
        (6, 0, 2, "`num_microbatches` .0."),
    ],
)
def test_a_size_that_does_not_divide_is_refused(
    num_stages: int, num_microbatches: int, num_chunks: int, words: str
):
    with pytest.raises(PlanError, match=words):
        interleaved(num_stages=num_stages, num_microbatches=num_microbatches, num_chunks=num_chunks)
