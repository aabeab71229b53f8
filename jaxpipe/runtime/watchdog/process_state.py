"""What the kernel says of a process on this host: it runs, waits, is stopped, or has died.

The main thread of a rank sleeps while others compute, so all threads count. A process without a
core is `running`, too: Linux calls so what runs, and what could run.

Source: proc(5), /proc/PID/task/TID/stat; Linux, Documentation/scheduler/sched-stats.rst.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_NANOSECONDS = 1e-9


class ProcessState(StrEnum):
    """The state of a process, as far as this host can know it."""

    GONE = "gone"
    """It has died."""
    STOPPED = "stopped"
    """A signal has stopped it, or a debugger has."""
    RUNNING = "running"
    """A thread computes, or waits for a core."""
    BLOCKED = "uninterruptible"
    """A thread waits for a disk, or for memory that is on one."""
    WAITING = "waiting"
    """All threads wait: for a message, a lock or a time."""
    UNKNOWN = "unknown"
    """It is on another host, or this system does not say."""

    @property
    def is_halted(self) -> bool:
        """Whether the process does nothing until somebody else acts."""
        return self in (ProcessState.STOPPED, ProcessState.GONE)

    @property
    def is_busy(self) -> bool:
        """Whether the process would continue if it had a core, or its disk answered."""
        return self in (ProcessState.RUNNING, ProcessState.BLOCKED)


def process_state(process: int, host: str) -> ProcessState:
    """Return the state of a process by its id on a host.

    >>> process_state(os.getpid(), socket.gethostname()).value, process_state(1, "elsewhere").value
    ('running', 'unknown')
    """
    if host != socket.gethostname():
        return ProcessState.UNKNOWN
    try:
        os.kill(process, 0)  # signal 0 only asks whether it exists
    except ProcessLookupError:
        return ProcessState.GONE
    except PermissionError:  # it exists, and belongs to another user
        pass
    return _state_of("".join(_letters(process)))


def _state_of(letters: str) -> ProcessState:
    """Return the state of a process by those of its threads, of which the first one ends last.

    >>> [_state_of(letters).value for letters in ("", "TT", "Z", "SSR", "SD", "SS")]
    ['unknown', 'stopped', 'gone', 'running', 'uninterruptible', 'waiting']
    """
    by_first = {
        **dict.fromkeys("tT", ProcessState.STOPPED),
        **dict.fromkeys("ZXx", ProcessState.GONE),
    }
    if not letters:
        return ProcessState.UNKNOWN
    if letters[0] in by_first:
        return by_first[letters[0]]
    if "R" in letters:
        return ProcessState.RUNNING
    return ProcessState.BLOCKED if "D" in letters else ProcessState.WAITING


def _letters(process: int) -> Iterator[str]:
    """Yield the states of the threads of a process, that of the first one first."""
    threads = Path(f"/proc/{process}/task").glob("[0-9]*")
    for thread in sorted(threads, key=lambda path: int(path.name) != process):
        with suppress(OSError, IndexError):  # it has ended meanwhile
            # The state follows the command in parentheses, which may contain any character.
            yield (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLook:
    """The state of a process at one moment, and the processor time of its threads so far."""

    state: ProcessState
    processor_s: float = 0.0


def look_at(process: int, host: str) -> ProcessLook:
    """Look at a process by its id on a host; of one elsewhere nothing is known.

    >>> look_at(os.getpid(), socket.gethostname()).processor_s > 0
    True
    """
    state = process_state(process, host)
    if state in (ProcessState.UNKNOWN, ProcessState.GONE):
        return ProcessLook(state=state)
    nanoseconds = 0
    # Not `stat`, which counts in hundredths: a rank at a thousandth of a core needs 10 s for one.
    for file in Path(f"/proc/{process}/task").glob("[0-9]*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            nanoseconds += int(file.read_text().split()[0])
    return ProcessLook(state=state, processor_s=nanoseconds * _NANOSECONDS)
