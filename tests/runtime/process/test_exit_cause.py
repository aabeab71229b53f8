"""What both MPIs were recorded to say when a rank is killed, and what is made of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpipe.runtime.process.exit_cause import ExitCause, find_exit_cause, lack_of_shared_memory

OPEN_MPI = """compiling the stages ...
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 9016 on node vm exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
OPEN_MPI_4 = """--------------------------------------------------------------------------
mpirun noticed that process rank 12 with PID 0 on node a.b-c exited on signal 11 (Segmentation
fault).
--------------------------------------------------------------------------
"""
MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 9081 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
MPICH_WITH_RANK = MPICH.replace("=   PID 9081", "=   RANK 3 PID 9081")
MPICH_ERROR = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 11 RUNNING AT vm
=   EXIT CODE: 1
"""


@pytest.mark.parametrize(
    ("output", "death"),
    [
        (OPEN_MPI, ExitCause(rank=1, signal=9)),
        (OPEN_MPI_4, ExitCause(rank=12, signal=11)),
        (MPICH, ExitCause(rank=None, signal=9)),
        (MPICH_WITH_RANK, ExitCause(rank=None, signal=9)),
        (MPICH_ERROR, None),
        ("", None),
        ("exited on signal (signal 9) process rank", None),
        ("noticed that process rank one with PID x on node a exited on signal 9", None),
    ],
)
def test_launchers_report_the_signal(output: str, death: ExitCause | None) -> None:
    assert find_exit_cause(output) == death


@pytest.mark.parametrize(
    ("free", "size", "is_named"),
    [(0, 4096, True), (2**19, 2**30, True), (2**20, 2**26, False), (0, 0, False)],
)
def test_a_lack_of_shared_memory_is_named(
    monkeypatch: pytest.MonkeyPatch, free: int, size: int, is_named: bool
) -> None:
    room = SimpleNamespace(f_frsize=1, f_blocks=size, f_bavail=free)
    monkeypatch.setattr("os.statvfs", lambda _: room)
    line = lack_of_shared_memory()
    assert ("--shm-size=1g" in line) == is_named
    assert (f"has {free / 1024:,.0f} KiB free of {size / 1024:,.0f}, " in line) == is_named


def test_memory_that_cannot_be_given_is_a_signal_of_its_own() -> None:
    assert [ExitCause(rank=0, signal=number).may_lack_memory for number in (7, 9)] == [True, False]
    assert lack_of_shared_memory(Path("/no/such/folder")) == ""


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (127, "unknown")])
def test_signals_have_names(number: int, name: str) -> None:
    assert f"{ExitCause(rank=0, signal=number)}" == f"it was ended by signal {number} ({name})"
