"""A launcher names all ranks that are stopped, in every phase, and no rank that is slow."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from jaxpipe.runtime.watchdog import Cause, CauseKind, Heartbeat, have_begun
from jaxpipe.runtime.watchdog.heartbeat import heartbeat_file, write_heartbeat
from jaxpipe.runtime.watchdog.process_state import ProcessLook, ProcessState
from jaxpipe.runtime.watchdog.rank_start import RankStart, StartPhase
from jaxpipe.runtime.watchdog.stopped_ranks import StoppedRanks, stopped_now

STARTUP_TIMEOUT_S, TIMEOUT_S = 30.0, 8.0
RUNS = ProcessLook(state=ProcessState.RUNNING, processor_s=1.0)
STOPPED = ProcessLook(state=ProcessState.STOPPED, processor_s=1.0)


@dataclass
class Ranks:
    """The processes of ranks as a launcher sees them, at a time that the test sets."""

    folder: Path
    num_ranks: int
    now_s: float = 0.0
    looks: dict[int, ProcessLook] = field(default_factory=dict[int, ProcessLook])

    def __post_init__(self) -> None:
        self.launcher = StoppedRanks(
            self.folder,
            num_ranks=self.num_ranks,
            startup_timeout_s=STARTUP_TIMEOUT_S,
            timeout_s=TIMEOUT_S,
            clock=lambda: self.now_s,
            look=lambda process, _: self.looks.get(process, RUNS),
        )
        for rank in range(self.num_ranks):
            say(self.folder, rank, process=rank)

    def after(self, seconds: float) -> Cause | None:
        """Look once a second for `seconds`, and return the first cause, if there is one."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            if (cause := self.launcher.cause()) is not None:
                return cause
        return None

    def begin(self, *, step: int) -> None:
        heartbeat = Heartbeat(
            rank=0, stage=0, step=step, doing="forward", waits_for=(), overdue=False,
            beat=1, process=1, host="here",
        )  # fmt: skip
        write_heartbeat(heartbeat_file(self.folder, 0), heartbeat, num_ranks=self.num_ranks)


def say(folder: Path, rank: int, *, process: int) -> None:
    start = RankStart(
        rank=rank, phase=StartPhase.STARTED, process=process, host=socket.gethostname()
    )
    (folder / "watch").mkdir(exist_ok=True)
    (folder / "watch" / f"start-{rank}.json").write_bytes(msgspec.json.encode(start))


@pytest.mark.parametrize("victims", [(1,), (0, 2), (0, 1, 2)])
def test_all_that_are_stopped_are_named_in_the_time_of_the_phase(
    tmp_path: Path, victims: tuple[int, ...]
) -> None:
    ranks = Ranks(tmp_path, num_ranks=3)
    ranks.begin(step=0)  # it compiles
    assert not have_begun(tmp_path)
    ranks.looks = dict.fromkeys(victims, STOPPED)
    assert ranks.after(STARTUP_TIMEOUT_S - 1) is None
    cause = ranks.after(3)
    assert cause is not None
    assert (cause.kind, cause.rank) == (CauseKind.STOPPED, victims[0])
    assert cause.message.startswith("`run.startup_timeout_s` (30 s) is over: rank ")
    assert [rank for rank in range(3) if f"rank {rank} is stopped (" in cause.message] == [*victims]


def test_once_a_step_has_begun_the_time_is_that_of_a_step(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, num_ranks=2)
    ranks.begin(step=1)
    assert ranks.after(2) is None
    heartbeat_file(tmp_path, 0).unlink()  # the last save has ended, and a rank stops after it
    ranks.looks = {1: STOPPED}
    assert ranks.after(TIMEOUT_S - 1) is None
    cause = ranks.after(3)
    assert cause is not None
    assert cause.message.startswith("`run.timeout_s` (8 s) is over: rank 1 is stopped (process 1 ")


def test_a_rank_that_moves_between_its_stops_is_slow(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, num_ranks=2)
    for turn in range(10):
        ranks.looks = {1: ProcessLook(state=ProcessState.STOPPED, processor_s=0.001 * turn)}
        assert ranks.after(TIMEOUT_S - 2) is None


def test_a_launcher_that_was_stopped_with_its_ranks_does_not_count_that_time(
    tmp_path: Path,
) -> None:
    ranks = Ranks(tmp_path, num_ranks=2)
    ranks.looks = dict.fromkeys((0, 1), STOPPED)
    assert ranks.after(3) is None
    ranks.now_s += 1e6
    assert ranks.launcher.cause() is None
    ranks.looks = {}
    assert ranks.after(100) is None


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Return two processes that wait until they are killed."""
    with ExitStack() as running:
        started: list[subprocess.Popen[bytes]] = []
        for _ in range(2):
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            running.enter_context(process)
            running.callback(process.kill)
            started.append(process)
        yield started


def test_the_error_of_a_wait_names_ranks_that_are_stopped(
    tmp_path: Path, processes: list["subprocess.Popen[bytes]"]
) -> None:
    for rank, process in enumerate((os.getpid(), *(started.pid for started in processes))):
        say(tmp_path, rank, process=process)
    assert stopped_now(tmp_path, 4, why="no message came") is None
    for process in processes:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    cause = stopped_now(tmp_path, 4, why="no message came")
    assert cause is not None
    assert (cause.kind, cause.rank) == (CauseKind.STOPPED, 1)
    pids = [process.pid for process in processes]
    host = socket.gethostname()
    assert cause.message == (
        f"no message came: rank 1 is stopped (process {pids[0]} on {host}), "
        f"rank 2 is stopped (process {pids[1]} on {host})"
    )
