"""React to a rank that hangs: end the job, or kill the rank so that the others continue.

::

    rank 2 hangs ──► found by 0, 1 and 3 ──► survive = restart: cause.json, and the job ends
                                         └─► survive = shrink:  a rank on its host kills it, and
                                                                the others recover as after any loss
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
from jaxpipe.errors import printable
from jaxpipe.runtime.watchdog import Cause, read_heartbeats

_PATIENCE_S = 5.0


class Killed(Enum):
    """Result of `kill_rank`."""

    NOW = auto()
    BEFORE = auto()
    """Its process is gone already."""
    NOT = auto()
    """It is on another host, or its process belongs to another user."""


class OnHang:
    """Callback for the causes that a watchdog finds, for jobs that survive lost ranks.

    Ranks on the same host kill the culprit; for a link that is cut there is none. If the job still
    hangs five seconds later, it ends.
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
        """Kill the culprit, wait for another rank to do it, or end the job."""
        now_s = self._clock()
        found = (cause.rank, cause.step)
        if found != self._found:  # a new culprit, or the last one has moved on: wait again
            self._found, self._since_s = found, now_s
        is_late = now_s - self._since_s > _PATIENCE_S
        if is_late:
            self._end(cause)
        # A host that is gone looks like a cut link: its ranks may be found lost meanwhile.
        elif cause.rank is not None and kill_rank(self._folder, cause.rank) is Killed.NOW:
            _write_line(f"{cause}; killed so that the others continue")


def kill_rank(folder: Path, rank: int) -> Killed:
    """Kill a rank of the run in a folder, if it runs on this host."""
    heartbeat = read_heartbeats(folder, range(rank, rank + 1)).get(rank)
    # A process number means nothing on another host.
    if heartbeat is None or heartbeat.host != socket.gethostname():
        return Killed.NOT
    try:
        os.kill(heartbeat.process, signal.SIGKILL)
    except ProcessLookupError:
        return Killed.BEFORE
    except PermissionError:
        return Killed.NOT
    return Killed.NOW


def end_job(keep: Callable[[Cause], bool], cause: Cause, *, survives: bool) -> None:
    """End this process, and with it the job: the main thread may be blocked for good.

    `keep` writes the cause, and returns whether it is the first.
    """
    if keep(cause):
        _write_line(f"{cause}")
    if survives:  # then one rank's exit does not end the others
        end_launcher()
    os._exit(1)


def _write_line(message: str) -> None:
    sys.stderr.write(f"jaxpipe: {printable(message)}\n")
    sys.stderr.flush()
