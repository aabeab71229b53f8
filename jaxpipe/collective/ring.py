"""Ring algorithms: each rank sends to the next one only, a p-th of the array at a time.

A reduce-scatter takes p - 1 rounds, after which each rank has the sum of one share; an all-gather
takes p - 1 more. An all-reduce is both: each rank sends 2 (p - 1) / p of the array in 2 (p - 1)
messages, and uses one link each way. In the order of a sync tree, a ring enters and leaves each
island once.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69, 2009.
"""

from collections.abc import Sequence
from functools import partial

from jaxpipe.collective.all_reduce_facts import AllReduceFacts, ClosedForm
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.step import Act, Phases, Step
from jaxpipe.collective.sync_tree import ranks


def ring_phases(order: Sequence[int], rank: int, chunk: ElementRange) -> Phases:
    """Return the steps of `rank` in an all-reduce of one chunk.

    >>> for phase in ring_phases((0, 1), 0, ElementRange(0, 8)):
    ...     print([(step.act.name, tuple(step.part)) for step in phase])
    [('SEND', (0, 4))]
    [('ADD', (4, 8)), ('SETTLE', (4, 8)), ('SEND', (4, 8))]
    [('TAKE', (0, 4))]
    """
    size, mine = len(order), order.index(rank)
    shares = chunk.cut(size)
    *scatter, settle = _reduce_scatter(order, rank, shares, first=mine)
    # The last share that a rank adds to is complete, and is the first that it sends round.
    send, *gather = _all_gather(order, rank, shares, first=(mine + 1) % size)
    return _without_empty([*scatter, [*settle, *send], *gather])


RING = AllReduceFacts(
    phases=lambda tree: partial(ring_phases, ranks(tree)),
    closed_form=ClosedForm.RING,
    # A p-th of the array is a message: a ring is not worth its latency unless that is large enough.
    is_simulated_in_chunks=False,
)


def reduce_scatter_phases(
    order: Sequence[int], rank: int, shares: Sequence[ElementRange]
) -> Phases:
    """Return the steps after which the n-th rank has the sum of the n-th share.

    >>> for phase in reduce_scatter_phases((0, 1), 0, ElementRange(0, 8).cut(2)):
    ...     print([(step.act.name, tuple(step.part)) for step in phase])
    [('SEND', (4, 8))]
    [('ADD', (0, 4)), ('SETTLE', (0, 4))]
    """
    # One back: the share that a rank adds to last is then its own.
    first = order.index(rank) - 1
    return _without_empty(_reduce_scatter(order, rank, shares, first=first))


def all_gather_phases(order: Sequence[int], rank: int, shares: Sequence[ElementRange]) -> Phases:
    """Return the steps after which every rank has the share that the n-th rank holds, for all n.

    >>> for phase in all_gather_phases((0, 1), 0, ElementRange(0, 8).cut(2)):
    ...     print([(step.act.name, tuple(step.part)) for step in phase])
    [('SEND', (0, 4))]
    [('TAKE', (4, 8))]
    """
    return _without_empty(_all_gather(order, rank, shares, first=order.index(rank)))


def _reduce_scatter(
    order: Sequence[int], rank: int, shares: Sequence[ElementRange], *, first: int
) -> list[list[Step]]:
    """Send the share `first`, then add to each share that arrives and pass it on."""
    size = len(order)
    before, after = _neighbours(order, rank)
    last = shares[(first + 1) % size]
    if size == 1:
        return [[Step(Act.SETTLE, last, is_own=True)]]
    phases = [[Step(Act.SEND, shares[first], after, is_own=True)]]
    for turn in range(1, size):
        share = shares[(first - turn) % size]
        phases.append([Step(Act.ADD, share, before, is_own=True), Step(Act.SEND, share, after)])
    # The last share stays here: it is settled instead of sent.
    phases[-1][-1] = Step(Act.SETTLE, last)
    return phases


def _all_gather(
    order: Sequence[int], rank: int, shares: Sequence[ElementRange], *, first: int
) -> list[list[Step]]:
    """Send the share `first`, then take each share that arrives and pass it on."""
    size = len(order)
    before, after = _neighbours(order, rank)
    if size == 1:
        return [[]]
    phases = [[Step(Act.SEND, shares[first], after)]]
    for turn in range(1, size):
        share = shares[(first - turn) % size]
        phases.append([Step(Act.TAKE, share, before), Step(Act.SEND, share, after)])
    phases[-1].pop()  # the next rank brought that share itself
    return phases


def _neighbours(order: Sequence[int], rank: int) -> tuple[int, int]:
    mine = order.index(rank)
    return order[mine - 1], order[(mine + 1) % len(order)]


def _without_empty(phases: list[list[Step]]) -> Phases:
    return [[step for step in phase if step.part.size] for phase in phases]
