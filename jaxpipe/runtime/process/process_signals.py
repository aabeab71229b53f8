"""Signals between a launcher, its children and the terminal: death of a parent, SIGTERM, Ctrl-Z.

Open MPI's `mpirun` kills its ranks 0.2 s after a SIGTERM, and no option changes that (5.0; earlier
versions had `odls_base_sigkill_timeout`). But a process that starts with the signal blocked never
receives it, and Linux shows that it is pending: the parent of `mpirun` acts on it instead.

Ctrl-Z does not suspend a run: its ranks watch each other by the clock, and so do MPI's waits. A
suspended launcher would stop reading the output of its ranks, which block when the pipe is full.
Ranks that were suspended with it would find each other overdue as soon as they continue. So
SIGTSTP is answered with a line that names what does work. `kill -STOP` stops a process as ever.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxpipe.foreign_file import lines_of

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make Linux send this process a signal when its parent dies, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def shows_pending_signals() -> bool:
    """Return whether this system shows the pending signals of other processes."""
    return sys.platform == "linux"


def block_signal(number: int) -> None:
    """Block a signal in this process, also after it has replaced its program (`exec`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def is_pending(process: int, number: int) -> bool:
    """Return whether a signal is pending for a process; False once that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    # ShdPnd is a bit mask in hexadecimal, signal 1 lowest; "shared" is for the whole process.
    masks = [line.split()[1] for line in lines_of(status) if line.startswith("ShdPnd:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


_LINE = (
    b"\njaxpipe: a run cannot be suspended, and continues; Ctrl-C saves a checkpoint and stops, "
    b"`--resume` continues from it\n"
)


@contextmanager
def not_suspended() -> Iterator[None]:
    """Answer Ctrl-Z with a line, within the block and in the main thread.

    Processes that are started meanwhile have the default again, unless they ask for this, too. A
    signal that is ignored stays ignored, as a shell without job control sets it.
    """
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        yield
        return
    previous = signal.signal(signal.SIGTSTP, _answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)


def _answer(*_: object) -> None:
    with suppress(OSError):
        # Not `print`: a handler may interrupt one that is under way.
        os.write(2, _LINE)


def kill_marked(name: str, value: str) -> None:
    """Kill the processes that have inherited this variable of the environment from any parent.

    A process whose parent has ended is no descendant of what has started it. It costs a look at
    each process of this user; without `/proc` none is killed.
    """
    mark = f"{name}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # of another user, or ended meanwhile
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def kill_with_descendants(process: int) -> None:
    """Kill a process, and all that it and its children have started.

    `mpirun` puts the ssh of each host into a process group of its own, where it outlives it.
    """
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # The second field is the name of the program in parentheses, and may hold anything.
        with suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    family = [process]
    for member in family:  # grows while it is walked
        family += [child for child, parent in parents.items() if parent == member]
    for member in family:  # parents first: they start no more
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
