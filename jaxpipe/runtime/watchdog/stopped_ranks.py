"""Ranks whose processes are stopped, for the launcher, in every phase of a run.

Ranks find each other first, while their watchdogs run: between the start of the first compilation
and the last save. The launcher finds what they cannot: ranks that are stopped before or after, or
all of them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxpipe.runtime.watchdog.cause import Cause, CauseKind
from jaxpipe.runtime.watchdog.heartbeat import have_begun
from jaxpipe.runtime.watchdog.process_state import ProcessLook, ProcessState, look_at, process_state
from jaxpipe.runtime.watchdog.rank_start import RankStart, read_start

_INTERVAL_S = 1.0


class StoppedRanks:
    """Judges, in a launcher, whether ranks on this host are stopped for too long.

    Args:
        folder: the folder of the run, which the ranks share with the launcher.
        num_ranks: the number of ranks.
        startup_timeout_s: how long a process may be stopped before training has begun.
        timeout_s: how long after that.
        clock: the time in seconds.
        look: what is seen of a process on a host.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_ranks: int,
        startup_timeout_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[int, str], ProcessLook] = look_at,
    ) -> None:
        self._folder, self._num_ranks = folder, num_ranks
        self._limits = (
            ("run.startup_timeout_s", startup_timeout_s),
            ("run.timeout_s", timeout_s),
        )
        self._clock, self._look = clock, look
        self._looked_s = clock()
        self._have_begun = False
        # Remembered: later, the file of a rank may be gone.
        self._starts: dict[int, RankStart] = {}
        self._stopped: dict[int, tuple[float, ProcessLook]] = {}

    def cause(self) -> Cause | None:
        """Return why the run has to end: ranks that are stopped; None while there is no reason."""
        now_s = self._clock()
        elapsed_s = now_s - self._looked_s
        if elapsed_s < _INTERVAL_S:
            return None
        self._looked_s = now_s
        self._have_begun = self._have_begun or have_begun(self._folder)
        for rank in range(self._num_ranks):
            # Bounded: a launcher that was stopped with its ranks must not count that time.
            self._look_at(rank, min(elapsed_s, 2 * _INTERVAL_S))
        field, limit_s = self._limits[self._have_begun]
        stopped = [rank for rank, (stopped_s, _) in self._stopped.items() if stopped_s > 0.0]
        if max((self._stopped[rank][0] for rank in stopped), default=0.0) < limit_s:
            return None
        return _cause(f"`{field}` ({limit_s:g} s) is over", [self._starts[r] for r in stopped])

    def _look_at(self, rank: int, elapsed_s: float) -> None:
        start = self._starts.get(rank) or read_start(self._folder, rank)
        if start is None:
            return
        self._starts[rank] = start
        look = self._look(start.process, start.host)
        stopped_s, before = self._stopped.get(rank, (0.0, None))
        # Stopped and continued in turn, a process moves: it is slow.
        is_still = look.state is ProcessState.STOPPED and look == before
        self._stopped[rank] = (stopped_s + elapsed_s if is_still else 0.0, look)


def stopped_now(folder: Path, num_ranks: int, *, why: str) -> Cause | None:
    """Return the cause of an error, `why`, if ranks of the run in a folder are stopped here."""
    starts = [start for rank in range(num_ranks) if (start := read_start(folder, rank)) is not None]
    stopped = [
        start
        for start in starts
        if process_state(start.process, start.host) is ProcessState.STOPPED
    ]
    return _cause(why, stopped) if stopped else None


def _cause(why: str, stopped: Sequence[RankStart]) -> Cause:
    named = ", ".join(
        f"rank {start.rank} is stopped (process {start.process} on {start.host})"
        for start in stopped
    )
    return Cause(kind=CauseKind.STOPPED, message=f"{why}: {named}", rank=stopped[0].rank)
