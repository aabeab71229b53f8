"""ZB-H1 and ZB-H2: their closed forms, and what messages that take time do to them."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import (
    Schedule,
    Timetable,
    check,
    eager_one_f_one_b,
    lower,
    one_f_one_b,
    peak_live,
    timetable,
    zb_h1,
    zb_h2,
)

SHAPES = list(product(range(1, 7), range(1, 13)))
SECONDS = st.floats(0.01, 10.0)


def equal_stages(
    schedule: Schedule, *, f: float = 1.0, b: float = 1.0, w: float = 1.0, message_s: float = 0.0
) -> Timetable:
    p = len(schedule)
    return timetable(
        schedule,
        forward_s=(f,) * p,
        backward_s=(b + w,) * p,
        backward_weight_s=(w,) * p,
        message_s=message_s,
    )


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 8), SECONDS, SECONDS, SECONDS)
def test_zb_h1_takes_the_closed_form(p: int, more: int, f: float, b: float, w: float):
    m = p + more
    schedule = zb_h1(num_stages=p, num_microbatches=m)
    bubble_s = (p - 1) * (f + b - min(f, b, w))
    assert equal_stages(schedule, f=f, b=b, w=w).makespan_s == pytest.approx(
        m * (f + b + w) + bubble_s
    )


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 8))
def test_zb_h2_is_never_idle_once_it_has_begun(p: int, more: int):
    m = 2 * p - 1 + more
    times = equal_stages(zb_h2(num_stages=p, num_microbatches=m))
    assert times.makespan_s == 3 * m + p - 1
    for stage, program in enumerate(times.programs):
        assert (program[0].start_s, program[-1].end_s) == (stage, 3 * m + stage)
    assert times.bubble_fraction == pytest.approx(0.0)


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_peaks_are_the_closed_forms(p: int, m: int):
    assert peak_live(zb_h1(num_stages=p, num_microbatches=m)) == (min(m, p),) * p
    assert peak_live(zb_h2(num_stages=p, num_microbatches=m)) == (min(m, 2 * p - 1),) * p


@pytest.mark.parametrize("generator", [zb_h1, zb_h2])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_nothing_waits_for_ever(generator: Callable[..., Schedule], p: int, m: int):
    check(lower(generator(num_stages=p, num_microbatches=m), tied=True, num_replicas=2))


@pytest.mark.parametrize(
    ("generator", "ratio"),
    [(one_f_one_b, 1.64), (eager_one_f_one_b, 1.16), (zb_h1, 1.36), (zb_h2, 1.06)],
)
def test_depth_in_flight_matters_more_than_the_bubble_on_slow_links(
    generator: Callable[..., Schedule], ratio: float
):
    schedule = generator(num_stages=4, num_microbatches=32)
    ideal_s = 32 * 3.0
    assert round(equal_stages(schedule, message_s=1.0).makespan_s / ideal_s, 2) == ratio
