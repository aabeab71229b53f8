"""What blocks a run, a rank, a host or a link: the end of the chain of waits of an overdue rank.

::

    rank 3 ──receive──► rank 2 ──receive──► rank 1 ──forward, overdue       rank 1 hangs
    rank 3 ──receive──► rank 2 ── no heartbeat                              rank 2 is stopped
    rank 3 ──receive──► rank 2 ──receive──► rank 3                          their link is cut

Schedules are checked: their ranks cannot deadlock. If ranks wait for each other all the same, and
all of them send heartbeats, then messages between them are lost.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from jaxpipe.runtime.watchdog.cause import CauseKind
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The rank that blocks the others, how, and the chain of waits that leads to it.

    Of a link it is the rank at which the cycle of waits is entered.
    """

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
    *before, rank = chain = chain_of_waits(heartbeats, start=start, stale=stale)
    if rank in stale:
        return Verdict(rank=rank, kind=CauseKind.STOPPED, chain=chain)
    if rank in before:
        return Verdict(rank=rank, kind=CauseKind.LINK, chain=chain)
    here = heartbeats.get(rank)
    if here is None or not here.overdue:
        return None  # it may only be slow: wait for its own deadline
    return Verdict(rank=rank, kind=CauseKind.HANG, chain=chain)


def chain_of_waits(
    heartbeats: Mapping[int, Heartbeat], *, start: int, stale: Set[int]
) -> tuple[int, ...]:
    """Return the ranks from `start` on of which each waits for the next.

    The last one is in `stale`, has no heartbeat, is within its deadline, waits for nobody, or
    closes a cycle: then it occurs twice.
    """
    chain = [start]
    while True:
        here = heartbeats.get(chain[-1])
        is_end = chain[-1] in stale or here is None or not here.overdue or not here.waits_for
        if here is None or is_end or chain[-1] in chain[:-1]:
            return tuple(chain)
        chain.append(_next(here, heartbeats, stale))


def cut_off(verdict: Verdict, rank: int) -> Verdict:
    """Return the verdict of a `rank` whose messages to other hosts stay without acknowledgement.

    The kernel of another host acknowledges what it receives, also for a process that is stopped: so
    the link is cut, or the host is gone.

    >>> stopped = Verdict(rank=2, kind=CauseKind.STOPPED, chain=(0, 1, 2))
    >>> print(cut_off(stopped, 0).kind, cut_off(stopped, 0).chain)
    link (0, 2, 0)
    """
    if verdict.kind is not CauseKind.STOPPED:
        return verdict
    chain = (rank, verdict.rank, rank)
    return Verdict(rank=rank, kind=CauseKind.LINK, chain=chain)


def explain(verdict: Verdict, heartbeats: Mapping[int, Heartbeat], *, stale: Set[int]) -> str:
    """Return what is wrong with the rank, the host or the link of a verdict, and who waits for it.

    >>> beats = {
    ...     rank: Heartbeat(rank=rank, stage=0, step=1, doing="receive", waits_for=(1 - rank,),
    ...                     overdue=True, beat=0, process=1, host=f"node-{rank}")
    ...     for rank in (0, 1)
    ... }
    >>> explain(Verdict(rank=0, kind=CauseKind.LINK, chain=(0, 1, 0)), beats, stale=set())
    'messages do not arrive between rank 0 on node-0 and rank 1 on node-1'
    >>> explain(Verdict(rank=1, kind=CauseKind.STOPPED, chain=(0, 1)), beats, stale={1})
    'it sends no heartbeat; rank 0 waits for rank 1'
    """
    if verdict.kind is CauseKind.LINK:
        ends = " and ".join(f"rank {r} on {heartbeats[r].host}" for r in _ends(verdict, heartbeats))
        return f"messages do not arrive between {ends}"
    host = heartbeats[verdict.rank].host
    there = sorted(rank for rank, heartbeat in heartbeats.items() if heartbeat.host == host)
    if verdict.kind is CauseKind.HANG:
        problem = "it has exceeded its deadline"
    elif len(there) > 1 and set(there) <= stale:
        ranks = ", ".join(map(str, there))
        problem = f"its host {host} is gone or cut off: none of its ranks {ranks} sends a heartbeat"
    else:
        problem = "it sends no heartbeat"
    if len(verdict.chain) == 1:
        return problem
    return f"{problem}; {' waits for '.join(f'rank {rank}' for rank in verdict.chain)}"


def _ends(verdict: Verdict, heartbeats: Mapping[int, Heartbeat]) -> tuple[int, ...]:
    """Return the ranks whose messages are lost: of a pipeline two, of an all-reduce all of it."""
    cycle = set(verdict.chain[verdict.chain.index(verdict.rank) :])
    # Which of the messages within a collective is lost, no rank knows.
    together = [heartbeats[rank].waits_for for rank in cycle if len(heartbeats[rank].waits_for) > 1]
    return tuple(sorted(cycle.union(*together) & heartbeats.keys()))


def _next(here: Heartbeat, heartbeats: Mapping[int, Heartbeat], stale: Set[int]) -> int:
    """Return the rank that one waits for.

    Of several, as in an all-reduce, it is one that is stopped, or has not reached it yet. One that
    has just come comes before those that have waited too long: the wait ends now.
    """

    def has_reached_it(rank: int) -> bool:
        there = heartbeats.get(rank)
        return there is not None and (there.step, there.doing) == (here.step, here.doing)

    def is_overdue(rank: int) -> bool:
        return rank in heartbeats and heartbeats[rank].overdue

    # False sorts first: stale ranks, then those that have not reached it.
    return min(
        here.waits_for,
        key=lambda rank: (rank not in stale, has_reached_it(rank), is_overdue(rank), rank),
    )
