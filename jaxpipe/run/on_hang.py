"""What a rank does about one that holds up the job: it ends the job, or lets it go on without.

::

    rank 2 hangs ──► found by 0, 1 and 3 ──► survive = restart: cause.json, and the job ends
                                         └─► survive = shrink:  who shares its host kills it, and
                                                                the others go on as after any loss
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from jaxpipe.comm.mpi.abort_job import end_launcher
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_heartbeats, write_cause

_PATIENCE_S = 5.0


class Killed(Enum):
    """What became of the wish to kill a rank."""

    NOW = auto()
    BEFORE = auto()
    """Its process is gone already."""
    NOT = auto()
    """It is on another host, or its process is another user's."""


class OnHang:
    """Called with the cause whenever a watchdog finds one; for ranks that survive each other.

    A rank is killed by those that share its host. If that is of no use within five seconds, or if
    ranks wait for each other in a circle, the job ends.
    """

    def __init__(
        self,
        folder: Path,
        *,
        end: Callable[[Cause], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._end = end
        self._clock = clock
        self._found: tuple[int | None, int | None] | None = None
        self._since_s = 0.0

    def __call__(self, cause: Cause) -> None:
        """Kill the rank of a cause, or wait for another to do it, or end the job."""
        now_s = self._clock()
        found = (cause.rank, cause.step)
        if found != self._found:  # one that was found before has come back to life
            self._found, self._since_s = found, now_s
        is_late = now_s - self._since_s > _PATIENCE_S
        if is_late or cause.rank is None or cause.kind is CauseKind.DEADLOCK:
            self._end(cause)
        elif kill_rank(self._folder, cause.rank) is Killed.NOW:
            _say(f"{cause}; it is killed, for the others to go on")


def kill_rank(folder: Path, rank: int) -> Killed:
    """Kill a rank of the run in a folder, if this host has it."""
    pulse = read_heartbeats(folder, range(rank, rank + 1)).get(rank)
    if pulse is None or pulse.host != socket.gethostname():
        return Killed.NOT
    try:
        os.kill(pulse.process, signal.SIGKILL)
    except ProcessLookupError:
        return Killed.BEFORE
    except PermissionError:
        return Killed.NOT
    return Killed.NOW


def end_job(folder: Path, cause: Cause, *, survives: bool) -> None:
    """End this process, and with it the job: the main thread may never come back."""
    if write_cause(folder, cause):
        _say(f"{cause}")
    if survives:  # the others would go on
        end_launcher()
    os._exit(1)


def _say(words: str) -> None:
    sys.stderr.write(f"jaxpipe: {words}\n")
    sys.stderr.flush()
