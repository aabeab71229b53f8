"""Which rank a signal has ended, in the words of the MPI's launcher, which alone knows it.

A rank that is killed says nothing; the launcher that started it says, when it ends the job::

    prterun noticed that process rank 1 with PID 9016 on node a exited on     Open MPI, stderr
    signal 9 (Killed).

    =   PID 9081 RUNNING AT a                                                 MPICH, stdout
    YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)

The process that MPICH names is not to be believed: of six jobs of which rank 3 was killed, it named
any of the four, since it kills the others with the same signal.
"""

import re
import signal
from dataclasses import dataclass

_OPEN_MPI = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node \S+ "
    r"exited on signal (?P<signal>\d+)"
)
_MPICH = re.compile(r"TERMINATED WITH THE EXIT STRING: [^()]{0,80}\(signal (?P<signal>\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """A signal that has ended a rank; `rank` is None where the launcher does not know which."""

    rank: int | None
    signal: int

    def __str__(self) -> str:
        """Name the signal.

        >>> str(ExitCause(rank=1, signal=9)), str(ExitCause(rank=None, signal=11))
        ('signal 9 (SIGKILL) has ended it', 'signal 11 (SIGSEGV) has ended a rank')
        """
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(self.signal, "unknown")
        whom = "a rank" if self.rank is None else "it"
        return f"signal {self.signal} ({name}) has ended {whom}"


def find_exit_cause(words: str) -> ExitCause | None:
    """Return the first death that a launcher tells of, None where it tells of none.

    Lines may be broken anywhere between words.

    >>> find_exit_cause("noticed that process rank 1 with PID 9 on node a exited on signal 9")
    ExitCause(rank=1, signal=9)
    >>> find_exit_cause("TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)")
    ExitCause(rank=None, signal=11)
    """
    line = " ".join(words.split())
    if (told := _OPEN_MPI.search(line)) is not None:
        return ExitCause(rank=int(told["rank"]), signal=int(told["signal"]))
    if (told := _MPICH.search(line)) is not None:
        return ExitCause(rank=None, signal=int(told["signal"]))
    return None
