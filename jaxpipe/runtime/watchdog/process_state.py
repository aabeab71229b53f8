"""What the kernel says of a process on this host: it runs, is stopped, or has died."""

import os
import socket
from enum import StrEnum
from pathlib import Path


class ProcessState(StrEnum):
    """The state of a process, as far as this host can know it."""

    GONE = "gone"
    """It has died."""
    STOPPED = "stopped"
    """A signal has stopped it, or a debugger has."""
    ALIVE = "alive"
    """It runs, or waits: for a core, a disk or a message."""
    UNKNOWN = "unknown"
    """It is on another host, or this system does not say."""


def process_state(process: int, host: str) -> ProcessState:
    """Return the state of a process by its id on a host.

    >>> process_state(os.getpid(), socket.gethostname()).value, process_state(1, "elsewhere").value
    ('alive', 'unknown')
    """
    if host != socket.gethostname():
        return ProcessState.UNKNOWN
    try:
        os.kill(process, 0)  # signal 0 only asks whether it exists
    except ProcessLookupError:
        return ProcessState.GONE
    except PermissionError:  # it exists, and belongs to another user
        pass
    try:
        # The state follows the command in parentheses, which may contain any character.
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
        state = status.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ProcessState.UNKNOWN
    if state in "tT":
        return ProcessState.STOPPED
    return ProcessState.GONE if state in "ZXx" else ProcessState.ALIVE
