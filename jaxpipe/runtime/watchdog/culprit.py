"""The rank that blocks a run: the end of the chain of waits that starts at an overdue rank.

::

    rank 3 ──receive──► rank 2 ──receive──► rank 1 ──forward, overdue       rank 1 hangs
    rank 3 ──receive──► rank 2 ── no heartbeat                              rank 2 is stopped
    rank 3 ──receive──► rank 2 ──receive──► rank 3                          they are deadlocked
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from jaxpipe.runtime.watchdog.cause import CauseKind
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The rank that blocks the others, how, and the chain of waits that leads to it."""

    rank: int
    kind: CauseKind
    chain: tuple[int, ...]


def find_culprit(
    heartbeats: Mapping[int, Heartbeat], *, start: int, stale: Set[int]
) -> Verdict | None:
    """Follow the chain of waits from the rank `start`; ranks in `stale` send no heartbeat.

    Return None while it ends at a rank that is within its deadline, or without any heartbeat so
    far: a slow rank has not failed.

    >>> def beat(rank, waits_for, overdue=True):
    ...     return Heartbeat(rank=rank, stage=0, step=1, doing=f"{waits_for}", waits_for=waits_for,
    ...                  overdue=overdue, beat=0, process=1, host="a")
    >>> chain = {2: beat(2, (1,)), 1: beat(1, (0,)), 0: beat(0, ())}
    >>> found = find_culprit(chain, start=2, stale=set())
    >>> found.rank, found.kind.value, found.chain
    (0, 'hang', (2, 1, 0))
    >>> find_culprit({**chain, 0: beat(0, (), overdue=False)}, start=2, stale=set())
    """
    chain: list[int] = []
    rank = start
    while rank not in chain:
        chain.append(rank)
        if rank in stale:
            return Verdict(rank=rank, kind=CauseKind.STOPPED, chain=tuple(chain))
        here = heartbeats.get(rank)
        if here is None or not here.overdue:
            return None  # it may only be slow: wait for its own deadline
        if not here.waits_for:
            return Verdict(rank=rank, kind=CauseKind.HANG, chain=tuple(chain))
        rank = _next(here, heartbeats, stale)
    return Verdict(rank=rank, kind=CauseKind.DEADLOCK, chain=(*chain, rank))


def _next(here: Heartbeat, heartbeats: Mapping[int, Heartbeat], stale: Set[int]) -> int:
    """Return the rank that one waits for.

    Of several, as in an all-reduce, it is one that is stopped, or has not reached it yet.
    """

    def has_reached_it(rank: int) -> bool:
        there = heartbeats.get(rank)
        return there is not None and (there.step, there.doing) == (here.step, here.doing)

    # False sorts first: stale ranks, then those that have not reached it.
    return min(here.waits_for, key=lambda rank: (rank not in stale, has_reached_it(rank), rank))
