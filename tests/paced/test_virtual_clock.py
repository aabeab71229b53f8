"""Time is that of the emulated ranks: a thread that wakes up late is due as if it had not."""

import time
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.paced.timing_error import TimingErrors, added
from jaxpipe.paced.virtual_clock import TimeBase, VirtualClock


def begun(*, late_s: float = 0.0) -> VirtualClock:
    clock = VirtualClock()
    clock.start(TimeBase(origin_s=time.perf_counter() - late_s, stretch=1e-6))
    return clock


@given(st.lists(st.floats(0.0, 10.0), max_size=5))
def test_waits_add_up(seconds: list[float]):
    clock = begun()
    for each in seconds:
        clock.sleep(each)
    assert clock.now() == pytest.approx(sum(seconds))
    assert clock.lateness.num_events == len(seconds)


def test_late_waits_are_noted_and_not_passed_on():
    clock = begun(late_s=0.5)
    clock.sleep(1.0)
    assert clock.now() == 1.0
    assert clock.lateness.mean_s >= 0.4
    assert clock.lateness.largest_s >= 0.4


def test_each_thread_is_due_for_itself():
    clock, seen = begun(), []
    clock.reach(2.0)
    thread = Thread(target=lambda: seen.append(clock.now()))
    thread.start()
    thread.join()
    assert seen == [0.0]
    with clock.at(1.0):
        assert clock.now() == 1.0
    assert clock.now() == 2.0
    clock.reach(1.0)
    assert clock.now() == 2.0


@given(st.lists(st.floats(-1.0, 1.0), max_size=9), st.integers(0, 9))
def test_lateness_adds_up(late_s: list[float], split: int):
    whole, parts = TimingErrors(), (TimingErrors(), TimingErrors())
    for number, each in enumerate(late_s):
        whole.add(each)
        parts[number < split].add(each)
    together, expected = added(part.summary() for part in parts), whole.summary()
    assert together.num_events == len(late_s)
    assert together.mean_s == pytest.approx(expected.mean_s)
    assert together.largest_s == expected.largest_s
