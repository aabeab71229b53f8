"""The timer calls in the order of the times, never early; an error ends it and is told."""

import time
from threading import Event

import pytest

from jaxpipe.comm.shaped import Timer
from jaxpipe.errors import DeadlineError


def test_calls_in_order_and_never_early() -> None:
    failures: list[Exception] = []
    timer = Timer(name="timer", clock=time.perf_counter, failed=failures.append)
    now_s = time.perf_counter()
    late_by_s: list[tuple[int, float]] = []

    def call(number: int, when_s: float) -> None:
        late_by_s.append((number, time.perf_counter() - when_s))

    for number in (3, 1, 0, 2):
        when_s = now_s + 0.01 * number
        timer.at(when_s, lambda number=number, when_s=when_s: call(number, when_s))
    timer.close(timeout_s=10.0)
    assert [number for number, _ in late_by_s] == [0, 1, 2, 3]
    assert all(late_s >= 0 for _, late_s in late_by_s)
    assert failures == []


def test_calls_of_one_time_keep_their_order() -> None:
    calls: list[int] = []
    timer = Timer(name="timer", clock=time.perf_counter, failed=lambda _: None)
    when_s = time.perf_counter() + 0.01
    for number in range(50):
        timer.at(when_s, lambda number=number: calls.append(number))
    timer.close(timeout_s=10.0)
    assert calls == list(range(50))


def test_an_error_is_told_and_ends_the_thread() -> None:
    failures: list[Exception] = []
    timer = Timer(name="timer", clock=time.perf_counter, failed=failures.append)
    timer.at(0.0, lambda: 1 / 0)
    timer.close(timeout_s=10.0)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


def test_what_is_left_at_the_end_is_still_called() -> None:
    timer = Timer(name="timer", clock=time.perf_counter, failed=lambda _: None)
    called = Event()
    timer.at(time.perf_counter() + 0.5, called.set)
    timer.end()
    with pytest.raises(DeadlineError, match=r"timed out after 0\.0 s waiting for the thread timer"):
        timer.close(timeout_s=0.01)
    assert called.wait(10.0)
    timer.close(timeout_s=10.0)
