"""Time is that of the emulated ranks: what wakes late is due as if it had not."""

import time
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.paced.timing_error import TimingErrors, added
from jaxpipe.paced.virtual_clock import Beat, Pace


def begun(*, late_s: float = 0.0) -> Pace:
    pace = Pace()
    pace.begin(Beat(origin_s=time.perf_counter() - late_s, stretch=1e-6))
    return pace


@given(st.lists(st.floats(0.0, 10.0), max_size=5))
def test_waits_add_up(seconds: list[float]):
    pace = begun()
    for each in seconds:
        pace.last(each)
    assert pace.now() == pytest.approx(sum(seconds))
    assert pace.lateness.num_all == len(seconds)


def test_late_waits_are_noted_and_not_passed_on():
    pace = begun(late_s=0.5)
    pace.last(1.0)
    assert pace.now() == 1.0
    assert pace.lateness.late_fraction == 1
    assert pace.lateness.largest_s >= 0.4


def test_each_thread_is_due_for_itself():
    pace, seen = begun(), []
    pace.reach(2.0)
    thread = Thread(target=lambda: seen.append(pace.now()))
    thread.start()
    thread.join()
    assert seen == [0.0]
    with pace.at(1.0):
        assert pace.now() == 1.0
    assert pace.now() == 2.0
    pace.reach(1.0)
    assert pace.now() == 2.0


@given(st.lists(st.floats(-1.0, 1.0), max_size=9), st.integers(0, 9))
def test_lateness_adds_up(late_s: list[float], cut: int):
    whole, parts = TimingErrors(), (TimingErrors(), TimingErrors())
    for number, each in enumerate(late_s):
        whole.add(each)
        parts[number < cut].add(each)
    together, expected = added(part.summary() for part in parts), whole.summary()
    assert together.num_late == expected.num_late
    assert together.num_all == len(late_s)
    assert together.mean_s == pytest.approx(expected.mean_s)
    assert together.largest_s == expected.largest_s
