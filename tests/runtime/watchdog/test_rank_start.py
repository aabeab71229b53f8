"""A start that does not end is ended, and the rank that the others wait for is named."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jaxpipe.runtime.watchdog.cause import CauseKind
from jaxpipe.runtime.watchdog.process_state import ProcessState, process_state
from jaxpipe.runtime.watchdog.rank_start import (
    RankStart,
    StartDeadline,
    StartPhase,
    has_started,
    write_start,
)

TIMEOUT_S = 30.0


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that waits until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def say(folder: Path, rank: int, *, process: int, phase: StartPhase) -> None:
    """Write the start of a rank that is another process."""
    start = RankStart(rank=rank, phase=phase, process=process, host=socket.gethostname())
    (folder / "watch").mkdir(exist_ok=True)
    (folder / "watch" / f"start-{rank}.json").write_bytes(msgspec.json.encode(start))


def comes_to(process: int, state: ProcessState) -> bool:
    until_s = time.monotonic() + 30.0
    while process_state(process, socket.gethostname()) is not state:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("files", "is_over"),
    [
        ({}, False),
        ({"start-0.json": StartPhase.STARTING_MPI}, False),
        ({"start-0.json": StartPhase.STARTING_MPI, "start-12.json": StartPhase.STARTED}, True),
        ({"rank-0.json": StartPhase.STARTED}, False),
    ],
)
def test_mpi_has_started_for_all_ranks_once_it_has_for_one(
    tmp_path: Path, files: dict[str, StartPhase], is_over: bool
) -> None:
    for name, phase in files.items():
        write_start(tmp_path, 0, phase)
        (tmp_path / "watch" / "start-0.json").rename(tmp_path / "watch" / "new")
        (tmp_path / "watch" / "new").rename(tmp_path / "watch" / name)
    assert has_started(tmp_path) == is_over


def test_the_state_of_a_process_is_known(process: "subprocess.Popen[bytes]") -> None:
    host = socket.gethostname()
    assert comes_to(process.pid, ProcessState.WAITING)
    process.send_signal(signal.SIGSTOP)
    assert comes_to(process.pid, ProcessState.STOPPED)
    process.send_signal(signal.SIGCONT)
    assert comes_to(process.pid, ProcessState.WAITING)
    process.kill()
    assert comes_to(process.pid, ProcessState.GONE)  # also before its parent has waited for it
    process.wait()
    assert process_state(process.pid, host) is ProcessState.GONE


def test_a_rank_that_is_stopped_while_mpi_starts_is_named(
    tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    now_s = [0.0]
    deadline = StartDeadline(tmp_path, num_ranks=3, timeout_s=TIMEOUT_S, clock=lambda: now_s[0])
    write_start(tmp_path, 0, StartPhase.STARTING_MPI)
    write_start(tmp_path, 2, StartPhase.STARTING_MPI)
    say(tmp_path, 1, process=process.pid, phase=StartPhase.STARTING_MPI)
    process.send_signal(signal.SIGSTOP)
    assert comes_to(process.pid, ProcessState.STOPPED)
    now_s[0] = TIMEOUT_S - 1.0
    assert deadline.cause() is None
    now_s[0] = TIMEOUT_S + 1.0
    cause = deadline.cause()
    assert cause is not None
    assert (cause.kind, cause.rank) == (CauseKind.STOPPED, 1)
    assert f"MPI has started: rank 1 is stopped (process {process.pid} on " in cause.message
    assert "rank 0" not in cause.message


def test_a_rank_that_has_not_begun_is_named_and_else_all_that_wait(tmp_path: Path) -> None:
    now_s = [0.0]
    deadline = StartDeadline(tmp_path, num_ranks=2, timeout_s=TIMEOUT_S, clock=lambda: now_s[0])
    write_start(tmp_path, 1, StartPhase.STARTING_MPI)
    now_s[0] += TIMEOUT_S + 1.0
    cause = deadline.cause()
    assert cause is not None
    assert (cause.rank, cause.message.rpartition(": ")[2]) == (0, "rank 0 has not begun")
    write_start(tmp_path, 0, StartPhase.STARTING_MPI)
    now_s[0] += 2.0
    cause = deadline.cause()
    assert cause is not None
    assert cause.rank is None
    assert all(f"rank {rank} waits in the start of MPI" in cause.message for rank in (0, 1))


def test_ranks_that_have_started_are_never_late(tmp_path: Path) -> None:
    now_s = [0.0]
    deadline = StartDeadline(tmp_path, num_ranks=2, timeout_s=TIMEOUT_S, clock=lambda: now_s[0])
    for rank in (0, 1):
        write_start(tmp_path, rank, StartPhase.STARTED)
    now_s[0] = 2.0
    assert deadline.cause() is None
    # One that dies now is for its `mpirun`, and the watchdogs, to notice.
    say(tmp_path, 1, process=os.getpid(), phase=StartPhase.STARTING_MPI)
    now_s[0] = 1e6
    assert deadline.cause() is None
