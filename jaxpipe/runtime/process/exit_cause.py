"""The rank that was ended by a signal, parsed from the output of the MPI launcher.

A rank that is killed cannot report it. Its launcher does, when it ends the job::

    prterun noticed that process rank 1 with PID 9016 on node a exited on     Open MPI, stderr
    signal 9 (Killed).

    =   PID 9081 RUNNING AT a                                                 MPICH, stdout
    YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)

The process that MPICH names is unreliable: it kills the other ranks with the same signal, and of
six jobs whose rank 3 was killed, it named each of the four ranks in some.
"""

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

_OPEN_MPI = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node \S+ "
    r"exited on signal (?P<signal>\d+)"
)
# Bounded repeats: the output of a run is untrusted, and may be long.
_MPICH = re.compile(r"TERMINATED WITH THE EXIT STRING: [^()]{0,80}\(signal (?P<signal>\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """A signal that has ended a rank; `rank` is None if the launcher does not identify it."""

    rank: int | None
    signal: int

    def __str__(self) -> str:
        """Name the signal.

        >>> str(ExitCause(rank=1, signal=9)), str(ExitCause(rank=None, signal=11))
        ('it was ended by signal 9 (SIGKILL)', 'a rank was ended by signal 11 (SIGSEGV)')
        """
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(self.signal, "unknown")
        subject = "a rank" if self.rank is None else "it"
        return f"{subject} was ended by signal {self.signal} ({name})"

    @property
    def may_lack_memory(self) -> bool:
        """Whether the signal is that of memory that a file system could not give."""
        return self.signal == signal.SIGBUS


_SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 2**20
"""Open MPI starts with 256 KiB, and not with 4 KiB (measured); its ranks take more as they talk."""


def lack_of_shared_memory(folder: Path = _SHARED_MEMORY) -> str:
    """Return a line on the room for memory that processes share, if it is too small; else "".

    MPI and its launcher keep such memory there, and say nothing of it when they end.
    """
    try:
        room = os.statvfs(folder)
    except OSError:  # not Linux
        return ""
    size, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    if size <= 0 or free >= _LEAST_BYTES:
        return ""
    return (
        f"{folder} has {free / 1024:,.0f} KiB free of {size / 1024:,.0f}, and MPI shares memory "
        f"there: remove old files, or enlarge it (mount -o remount,size=1g {folder}; docker run "
        "--shm-size=1g)"
    )


def find_exit_cause(output: str) -> ExitCause | None:
    """Return the first signal that a launcher reports, None if it reports none.

    Launchers may break lines anywhere between words.

    >>> find_exit_cause("noticed that process rank 1 with PID 9 on node a exited on signal 9")
    ExitCause(rank=1, signal=9)
    >>> find_exit_cause("TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)")
    ExitCause(rank=None, signal=11)
    """
    line = " ".join(output.split())
    if (match := _OPEN_MPI.search(line)) is not None:
        return ExitCause(rank=int(match["rank"]), signal=int(match["signal"]))
    if (match := _MPICH.search(line)) is not None:
        return ExitCause(rank=None, signal=int(match["signal"]))
    return None
