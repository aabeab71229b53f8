"""Which rank a signal has ended, in the words of the MPI's launcher, which alone knows it.

A rank that is killed says nothing; the launcher that started it says, when it ends the job::

    prterun noticed that process rank 1 with PID 9016 on node a exited on     Open MPI, stderr
    signal 9 (Killed).

    =   PID 9081 RUNNING AT a                                                 MPICH, stdout
    YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""

import re
import signal
from dataclasses import dataclass

_OPEN_MPI = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID (?P<process>\d+) on node \S+ "
    r"exited on signal (?P<signal>\d+)"
)
_MPICH = re.compile(r"(RANK (?P<rank>\d+) )?PID (?P<process>\d+) RUNNING AT \S+")
_MPICH_SIGNAL = re.compile(r"EXIT STRING: .{0,80}?\(signal (?P<signal>\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that a signal has ended; `rank` is None where the launcher names none."""

    rank: int | None
    process: int
    signal: int

    def __str__(self) -> str:
        """Name the signal.

        >>> str(Death(rank=1, process=9016, signal=9))
        'signal 9 (SIGKILL) ended process 9016'
        """
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(self.signal, "unknown")
        return f"signal {self.signal} ({name}) ended process {self.process}"


def find_death(words: str) -> Death | None:
    """Return the first death that a launcher tells of, None where it tells of none.

    Lines may be broken anywhere between words.

    >>> find_death("mpirun noticed that process rank 1 with PID 90 on node a exited on signal 9.")
    Death(rank=1, process=90, signal=9)
    >>> find_death("=   PID 91 RUNNING AT a = EXIT CODE: 11 YOUR APPLICATION TERMINATED WITH THE "
    ...            "EXIT STRING: Segmentation fault (signal 11)")
    Death(rank=None, process=91, signal=11)
    >>> find_death("step 1 of 9")
    """
    line = " ".join(words.split())
    if (told := _OPEN_MPI.search(line)) is not None:
        return _death(told["rank"], told["process"], told["signal"])
    told, number = _MPICH.search(line), _MPICH_SIGNAL.search(line)
    if told is None or number is None:
        return None
    return _death(told["rank"], told["process"], number["signal"])


def _death(rank: str | None, process: str, number: str) -> Death:
    return Death(rank=None if rank is None else int(rank), process=int(process), signal=int(number))
