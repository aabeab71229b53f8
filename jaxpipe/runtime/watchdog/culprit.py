"""Who holds up a run: from the one that waits too long to the one that waits for nobody.

::

    rank 3 ──receive──► rank 2 ──receive──► rank 1 ──forward, overdue       rank 1 hangs
    rank 3 ──receive──► rank 2 ── no pulse any more                         rank 2 is stopped
    rank 3 ──receive──► rank 2 ──receive──► rank 3                          they wait in a circle
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from jaxpipe.runtime.watchdog.cause import CauseKind
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The rank that holds up the others, how, and the ranks through which it was found."""

    rank: int
    kind: CauseKind
    chain: tuple[int, ...]


def find_culprit(pulses: Mapping[int, Heartbeat], *, start: int, stale: Set[int]) -> Verdict | None:
    """Follow who waits for whom from the rank `start`; `stale` are those without a pulse.

    Return None as long as it ends at a rank that is still in time, or of which nothing is known:
    it may be slow, and is not held to have failed.

    >>> def pulse(rank, waits_for, overdue=True):
    ...     return Heartbeat(rank=rank, stage=0, step=1, doing=f"{waits_for}", waits_for=waits_for,
    ...                  overdue=overdue, beat=0, process=1, host="a")
    >>> chain = {2: pulse(2, (1,)), 1: pulse(1, (0,)), 0: pulse(0, ())}
    >>> found = find_culprit(chain, start=2, stale=set())
    >>> found.rank, found.kind.value, found.chain
    (0, 'hang', (2, 1, 0))
    >>> find_culprit({**chain, 0: pulse(0, (), overdue=False)}, start=2, stale=set())
    """
    chain: list[int] = []
    rank = start
    while rank not in chain:
        chain.append(rank)
        if rank in stale:
            return Verdict(rank=rank, kind=CauseKind.STOPPED, chain=tuple(chain))
        here = pulses.get(rank)
        if here is None or not here.overdue:
            return None
        if not here.waits_for:
            return Verdict(rank=rank, kind=CauseKind.HANG, chain=tuple(chain))
        rank = _next(here, pulses, stale)
    return Verdict(rank=rank, kind=CauseKind.DEADLOCK, chain=(*chain, rank))


def _next(here: Heartbeat, pulses: Mapping[int, Heartbeat], stale: Set[int]) -> int:
    """Return whom a rank waits for; of several, one that is stopped or has not come as far."""

    def has_come(rank: int) -> bool:
        there = pulses.get(rank)
        return there is not None and (there.step, there.doing) == (here.step, here.doing)

    return min(here.waits_for, key=lambda rank: (rank not in stale, has_come(rank), rank))
