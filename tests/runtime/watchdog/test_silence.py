"""A rank without heartbeats is dead or slow, by what its process does."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.watchdog import Heartbeat
from jaxpipe.runtime.watchdog.process_state import ProcessLook, ProcessState, look_at
from jaxpipe.runtime.watchdog.silence import STALE_S, Silence, Silences

TICK_S, MINUTES = 0.2, 600
BUSY = (ProcessState.RUNNING, ProcessState.BLOCKED)
HEARTBEAT = Heartbeat(
    rank=1, stage=0, step=3, doing="forward 3", waits_for=(), overdue=False, beat=7,
    process=os.getpid(), host=socket.gethostname(),
)  # fmt: skip


@pytest.fixture
def busy() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that computes without end."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


def dead_after(looks: Iterator[ProcessLook], *, ticks: int = MINUTES) -> float | None:
    """Return the seconds of silence after which a rank is dead, None if it never is."""
    silence = Silence(beat=7)
    for _ in range(ticks):
        silence = silence.after(next(looks), TICK_S)
        if silence.is_dead(is_answered=True, is_reported=False):
            return silence.silent_s
    return None


def looks_at(states: Iterator[ProcessState], *, moves_s: float) -> Iterator[ProcessLook]:
    processor_s = 1.0
    for state in states:
        processor_s += moves_s
        yield ProcessLook(state=state, processor_s=processor_s)


@given(
    states=st.lists(st.sampled_from((*BUSY, ProcessState.STOPPED)), min_size=1, max_size=9),
    part=st.floats(0.0001, 0.02),
)
def test_a_process_that_moves_and_lacks_a_core_is_never_dead(
    states: list[ProcessState], part: float
) -> None:
    """It gets up to a fiftieth of a core for two minutes, and is looked at while it is stopped."""

    def forever() -> Iterator[ProcessState]:
        while True:
            yield from states

    assert dead_after(looks_at(forever(), moves_s=part * TICK_S)) is None


@pytest.mark.parametrize(
    ("state", "moves_s", "seconds"),
    [
        (ProcessState.GONE, 0.0, STALE_S),
        (ProcessState.STOPPED, 0.0, STALE_S),
        (ProcessState.WAITING, 0.0, 30.0),
        (ProcessState.WAITING, 1e-4, 30.0),  # threads that wake up and sleep again
        (ProcessState.RUNNING, 0.2, 30.0),  # it has a core, and sends no heartbeat
        (ProcessState.RUNNING, 0.0, None),  # it waits for a core that others have
        (ProcessState.BLOCKED, 0.0, None),  # the disk does not answer
    ],
)
def test_a_process_that_will_not_continue_is_dead(
    state: ProcessState, moves_s: float, seconds: float | None
) -> None:
    def forever() -> Iterator[ProcessState]:
        while True:
            yield state

    dead_s = dead_after(looks_at(forever(), moves_s=moves_s))
    assert dead_s == (None if seconds is None else pytest.approx(seconds, abs=TICK_S + 1e-6))


@pytest.mark.parametrize(
    ("gap_s", "is_answered", "is_reported", "seconds"),
    [
        (0.2, True, False, STALE_S),
        (3.0, True, False, 15.0),  # it was late lately
        (60.0, True, False, 30.0),
        (60.0, False, False, STALE_S),  # its link is cut
        (60.0, True, True, STALE_S),  # a rank on its host sees it stopped
    ],
)
def test_a_process_on_another_host_is_judged_by_how_late_it_was(
    gap_s: float, is_answered: bool, is_reported: bool, seconds: float
) -> None:
    silence, unseen = Silence(beat=7, gap_s=gap_s), ProcessLook(state=ProcessState.UNKNOWN)
    while not silence.is_dead(is_answered=is_answered, is_reported=is_reported):
        assert silence.silent_s < 100.0
        silence = silence.after(unseen, TICK_S)
    assert silence.silent_s == pytest.approx(seconds, abs=TICK_S + 1e-6)


def test_a_process_that_is_stopped_and_continued_in_turn_is_slow(
    busy: "subprocess.Popen[bytes]",
) -> None:
    """A hundred turns, as if each took a second."""
    silences, heartbeat = Silences(), replace(HEARTBEAT, process=busy.pid)
    busy.send_signal(signal.SIGSTOP)
    for _ in range(100):
        before_s = look_at(busy.pid, HEARTBEAT.host).processor_s
        busy.send_signal(signal.SIGCONT)
        while look_at(busy.pid, HEARTBEAT.host).processor_s == before_s:
            time.sleep(0.001)
        busy.send_signal(signal.SIGSTOP)
        while look_at(busy.pid, HEARTBEAT.host).state is not ProcessState.STOPPED:
            time.sleep(0.001)
        silences.update([heartbeat], 1.0)
        assert not silences.dead({1: heartbeat}, unanswered=frozenset())
    for _ in range(3):  # nobody lets it continue any more
        silences.update([heartbeat], 1.0)
    assert silences.dead({1: heartbeat}, unanswered=frozenset()) == {1}
    assert silences.halted({1: heartbeat}) == (1,)
    described = silences.describe(1, {1: heartbeat})
    assert described.startswith(f"rank 1 is stopped (process {busy.pid} on {HEARTBEAT.host}, no ")


def test_no_process_is_looked_at_before_a_wait_is_nearly_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look reads the files of all threads, and a host may have many ranks."""
    looks: list[int] = []

    def look(process: int, _: str) -> ProcessLook:
        looks.append(process)
        return ProcessLook(state=ProcessState.STOPPED, processor_s=1.0)

    monkeypatch.setattr("jaxpipe.runtime.watchdog.silence.look_at", look)
    silences = Silences()
    for _ in range(50):
        silences.update([HEARTBEAT], TICK_S, looks=False)
    assert not looks
    for _ in range(8):  # the wait is late 1.6 s from now
        silences.update([HEARTBEAT], TICK_S)
    assert len(looks) == 8
    assert silences.dead({1: HEARTBEAT}, unanswered=frozenset()) == {1}


def test_a_new_heartbeat_ends_the_silence(busy: "subprocess.Popen[bytes]") -> None:
    silences, heartbeat = Silences(), replace(HEARTBEAT, process=busy.pid)
    busy.kill()
    busy.wait()
    for beat in range(20):
        silences.update([replace(heartbeat, beat=beat)], 1.0)
        assert not silences.dead({1: heartbeat}, unanswered=frozenset())
    for _ in range(3):
        silences.update([replace(heartbeat, beat=19)], 1.0)
    assert silences.dead({1: heartbeat}, unanswered=frozenset()) == {1}
