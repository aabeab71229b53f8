"""Progress drives operations in order, from its thread or from whoever waits."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from jaxpipe.comm.mpi import progress_engine
from jaxpipe.comm.mpi.progress_engine import ProgressEngine
from jaxpipe.errors import DeadlineError


class Fake:
    """An operation that starts when it is ready, and ends after `tests` tests."""

    def __init__(self, name: str, log: list[str], *, channel: int = 0, tests: int = 1):
        self.name = name
        self.channel = channel
        self.is_over = False
        self.ready = True
        self._log = log
        self._tests = tests

    def start(self) -> bool:
        if self.ready:
            self._log.append(self.name)
        return self.ready

    def test(self) -> bool:
        self._tests -= 1
        if self._tests <= 0:
            self.is_over = True
        return self.is_over

    def late(self, *, waited_s: float) -> DeadlineError:
        return DeadlineError(f"{self.name} is late by {waited_s:.1f} s")


@pytest.fixture
def nudges() -> list[float]:
    return []


@pytest.fixture
def progress(nudges: list[float]) -> Iterator[ProgressEngine[Fake]]:
    progress: ProgressEngine[Fake] = ProgressEngine(
        lambda: nudges.append(time.monotonic()), clock=time.monotonic
    )
    yield progress
    progress.stop(timeout_s=5.0)


@pytest.mark.parametrize("tests", [1, 2, 1_000])
def test_a_wait_drives_to_the_end(progress: ProgressEngine[Fake], tests: int):
    log: list[str] = []
    operation = Fake("one", log, tests=tests)
    progress.add(operation)
    progress.wait(operation, timeout_s=5.0)
    progress.wait(operation, timeout_s=0.0)
    assert log == ["one"]


@pytest.mark.parametrize("waits", [True, False])
def test_whoever_drives_tends(waits: bool):
    times_s: list[float] = []
    progress: ProgressEngine[Fake] = ProgressEngine(
        lambda: None, clock=time.monotonic, tend=times_s.append
    )
    operation = Fake("one", [], tests=1_000_000_000)
    progress.add(operation)
    try:
        if waits:
            with pytest.raises(DeadlineError):
                progress.wait(operation, timeout_s=0.2)
        else:
            time.sleep(0.2)
    finally:
        progress.stop(timeout_s=5.0)
    assert len(times_s) > 10
    assert times_s == sorted(times_s)


def test_the_thread_drives_while_nobody_waits(progress: ProgressEngine[Fake]):
    operation = Fake("one", [], tests=20)
    progress.add(operation)
    end_s = time.monotonic() + 5.0
    while not operation.is_over and time.monotonic() < end_s:
        time.sleep(1e-3)
    assert operation.is_over


def test_what_is_not_ready_holds_back_its_channel_and_no_other(progress: ProgressEngine[Fake]):
    log: list[str] = []
    first, second = Fake("first", log), Fake("second", log)
    other = Fake("other", log, channel=1)
    first.ready = False
    for operation in (first, second, other):
        progress.add(operation)
    progress.wait(other, timeout_s=5.0)
    assert log == ["other"]
    assert set(progress.unfinished()) == {first, second}
    first.ready = True
    progress.wait(second, timeout_s=5.0)
    assert log == ["other", "first", "second"]


def test_a_late_operation_goes_on(progress: ProgressEngine[Fake]):
    operation = Fake("one", [])
    operation.ready = False
    progress.add(operation)
    with pytest.raises(DeadlineError, match="one is late by"):
        progress.wait(operation, timeout_s=0.1)
    operation.ready = True
    progress.wait(operation, timeout_s=5.0)


def test_nudges_when_nothing_is_under_way(progress: ProgressEngine[Fake], nudges: list[float]):
    time.sleep(0.1)
    assert nudges
    progress.stop(timeout_s=5.0)
    num_nudges = len(nudges)
    time.sleep(0.05)
    assert len(nudges) == num_nudges


def test_polls_are_rare_while_nothing_is_pending(
    progress: ProgressEngine[Fake], nudges: list[float]
):
    operation = Fake("one", [])
    progress.add(operation)
    deadline_s = time.monotonic() + 5.0
    while not operation.is_over and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert operation.is_over
    # After 0.26 s of silence the pause is the longest.
    silent_s = time.monotonic() + 0.3
    while len(late_s := [at_s for at_s in nudges if at_s > silent_s]) < 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    # A busy machine only makes pauses longer.
    assert min(np.diff(late_s)) > 0.02


def test_an_operation_ends_the_sleep_of_an_idle_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_engine, "_LONGEST_IDLE_PAUSE_S", 60.0)
    monkeypatch.setattr(progress_engine, "_SHORTEST_SLEEP_S", 60.0)
    progress: ProgressEngine[Fake] = ProgressEngine(lambda: None, clock=time.monotonic)
    time.sleep(0.1)
    operation = Fake("one", [])
    progress.add(operation)
    deadline_s = time.monotonic() + 5.0
    while not operation.is_over and time.monotonic() < deadline_s:
        time.sleep(0.001)
    progress.stop(timeout_s=5.0)
    assert operation.is_over


class FakeCore:
    """A core whose time passes only in yields and sleeps."""

    def __init__(self, *, yield_s: float):
        self.now_s = 0.0
        self.yield_s = yield_s
        self.slept_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sched_yield(self) -> None:
        self.now_s += self.yield_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.slept_s += duration_s


@pytest.mark.parametrize(
    ("yield_s", "least_slept_s", "most_slept_s"), [(1e-5, 0.0, 0.0), (1e-3, 0.03, 0.045)]
)
def test_a_wait_sleeps_early_on_a_core_that_others_use(
    monkeypatch: pytest.MonkeyPatch, yield_s: float, least_slept_s: float, most_slept_s: float
):
    core = FakeCore(yield_s=yield_s)
    progress: ProgressEngine[Fake] = ProgressEngine(lambda: None, clock=core.clock, yielding_s=0.05)
    progress.stop(timeout_s=5.0)
    monkeypatch.setattr(progress_engine.os, "sched_yield", core.sched_yield)
    monkeypatch.setattr(progress_engine.time, "sleep", core.sleep)
    operation = Fake("one", [], tests=1_000_000)
    progress.add(operation)
    with pytest.raises(DeadlineError):
        progress.wait(operation, timeout_s=0.04)
    assert least_slept_s <= core.slept_s <= most_slept_s
    # A second after the last late yield, the core counts as this rank's own again.
    core.now_s, core.slept_s, core.yield_s = core.now_s + 1.1, 0.0, 1e-5
    with pytest.raises(DeadlineError):
        progress.wait(operation, timeout_s=0.04)
    assert core.slept_s == 0.0
