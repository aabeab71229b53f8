"""The other ranks as a rank sees them while it waits: which blocks the run, which is only slow."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxpipe.runtime.watchdog.cause import Cause, CauseKind
from jaxpipe.runtime.watchdog.connections import Arrivals
from jaxpipe.runtime.watchdog.culprit import (
    Verdict,
    chain_of_waits,
    cut_off,
    explain,
    find_culprit,
)
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat, read_heartbeats
from jaxpipe.runtime.watchdog.silence import Silences
from jaxpipe.runtime.watchdog.slow_ranks import SlowLines, explain_late, explain_slow

_LOOKS_BEFORE_S = 2.0
"""Before a wait is late, processes are looked at: a stopped one is known by two looks."""
_MOST_NAMED = 8
"""Of the ranks that a rank waits for, in one line."""


@runtime_checkable
class Exchange(Protocol):
    """Heartbeats and causes of ranks that see another folder (`HeartbeatExchange`)."""

    @property
    def heartbeats(self) -> dict[int, Heartbeat]:
        """The latest heartbeats of those ranks."""
        ...

    @property
    def received_bytes(self) -> int:
        """The bytes of all heartbeats and causes that have arrived."""
        ...

    def tick(self, mine: Heartbeat, *, waits: bool) -> None:
        """Take what has arrived, and send the heartbeat of this rank when it is due."""
        ...

    def tell(self, cause: Cause) -> None:
        """Send why the run ends."""
        ...

    def close(self) -> None:
        """End the exchange together with those ranks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a rank sees beside heartbeats, `waited_s` after its wait began.

    `elapsed_s` is the time since it last looked. The wait is late `left_s` from now, or was before.
    """

    arrivals: Arrivals
    waited_s: float
    elapsed_s: float
    left_s: float

    @property
    def is_late(self) -> bool:
        """Whether the wait has exceeded its deadline."""
        return self.left_s < 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What blocks the run, the last heartbeat of its rank, and the message that names it."""

    verdict: Verdict
    heartbeat: Heartbeat
    message: str


class OtherRanks:
    """The other ranks of a run in a folder; those that see another one are in the `exchange`.

    `halted` are those whose processes on this host are stopped or gone.
    """

    def __init__(self, folder: Path, *, num_ranks: int) -> None:
        self.exchange: Exchange | None = None
        self.halted: tuple[int, ...] = ()
        self._folder, self._num_ranks = folder, num_ranks
        self._slow, self._silences = SlowLines(), Silences()
        self._suspect: Verdict | None = None

    def clear(self) -> None:
        """Forget what was seen: the wait is over."""
        self._silences.clear()
        self._suspect, self.halted = None, ()

    def look(self, mine: Heartbeat, sight: Sight) -> Judged | None:
        """Look for what blocks the run.

        It is judged if it is found in two looks in a row: heartbeats of different ranks are up to a
        tick apart, so that one look may see a wait that is over. What is slow is logged if the wait
        is late.
        """
        # Only of ranks with a heartbeat: a rank that ends in order removes its own.
        heartbeats = self._read()
        heartbeats.pop(mine.rank, None)
        looks = sight.left_s <= _LOOKS_BEFORE_S
        self._silences.update(heartbeats.values(), sight.elapsed_s, looks=looks)
        self.halted = self._silences.halted(heartbeats)
        far = set() if self.exchange is None else self.exchange.heartbeats.keys()
        far |= {rank for rank, heartbeat in heartbeats.items() if heartbeat.host != mine.host}
        unanswered = frozenset() if sight.arrivals.is_answered else frozenset(far)
        stale = self._silences.dead(heartbeats, unanswered=unanswered)
        heartbeats[mine.rank] = mine
        if sight.is_late:
            self._name_slow(mine, heartbeats, stale, sight)
        if not mine.overdue:
            return None
        verdict = find_culprit(heartbeats, start=mine.rank, stale=stale)
        if verdict is not None and verdict.rank in unanswered:
            verdict = cut_off(verdict, mine.rank)
        suspect, self._suspect = self._suspect, verdict
        if verdict is None or verdict != suspect:
            return None
        message = explain(verdict, heartbeats, stale=stale)
        if verdict.kind is CauseKind.STOPPED:
            message += f": {self._describe(sorted(stale), heartbeats)}"
        return Judged(verdict=verdict, heartbeat=heartbeats[verdict.rank], message=message)

    def explain_wait(self, mine: Heartbeat) -> str:
        """Return how the ranks are that a rank waits for, "" if it waits for none."""
        heartbeats = {**self._read(), mine.rank: mine}

        def has_come(rank: int) -> bool:
            there = heartbeats.get(rank)
            return there is not None and (there.step, there.doing) == (mine.step, mine.doing)

        behind = [rank for rank in mine.waits_for if not has_come(rank)]
        return self._describe(behind or mine.waits_for, heartbeats)

    def _read(self) -> dict[int, Heartbeat]:
        heartbeats = read_heartbeats(self._folder, range(self._num_ranks))
        return heartbeats | ({} if self.exchange is None else self.exchange.heartbeats)

    def _name_slow(
        self, mine: Heartbeat, heartbeats: Mapping[int, Heartbeat], stale: Set[int], sight: Sight
    ) -> None:
        """Say for what a rank waits longer than ever, if that has not failed."""
        if not mine.waits_for:
            return
        if sight.arrivals.num_bytes:
            late = explain_late(mine, heartbeats, waited_s=sight.waited_s)
            rate = f"{sight.arrivals.bytes_per_s / 1e6:.3g} MB/s"
            line = f"{late} at {rate}: the link is slow, training continues"
            self._slow.say(sight.elapsed_s, lambda: line)
            return
        rank = chain_of_waits(heartbeats, start=mine.rank, stale=stale)[-1]
        if rank in heartbeats and rank not in stale and not heartbeats[rank].overdue:
            self._slow.say(
                sight.elapsed_s,
                lambda: explain_slow(
                    mine.rank,
                    self._silences.describe(rank, heartbeats),
                    waited_s=sight.waited_s,
                ),
            )

    def _describe(self, ranks: Sequence[int], heartbeats: Mapping[int, Heartbeat]) -> str:
        named = [self._silences.describe(rank, heartbeats) for rank in ranks[:_MOST_NAMED]]
        more = len(ranks) - len(named)
        return ", ".join([*named, *([f"and {more} more"] if more else [])])
