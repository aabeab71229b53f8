"""Pairwise exchanges: all-to-all and barrier, in which ranks meet at growing distances.

::

    all-to-all     rank r sends one block to each of r + 1, r + 2, ...: no port gets two at once
    barrier        in round k rank r signals r + 2**k, and waits for r - 2**k
    rendezvous     the same, but r signals only once r + 2**k has requested it
"""

from collections.abc import Sequence

from jaxpipe.collective.kinds import BarrierKind
from jaxpipe.collective.shards import ElementRange, consecutive
from jaxpipe.collective.step import Act, Phases, Step


def all_to_all_phases(
    order: Sequence[int], rank: int, sizes: Sequence[Sequence[int]], *, message_size: int
) -> Phases:
    """Return the steps that move block j of the n-th rank to the j-th rank, as its n-th block.

    Of `order[n]`'s array, `sizes[n][j]` elements go to `order[j]`. Sends read what the rank brought
    (blocks in the order of their destinations); what arrives stands in the order of the sources.
    The block of a rank for itself does not travel.

    >>> for phase in all_to_all_phases((0, 1), 0, [[1, 2], [3, 4]], message_size=9):
    ...     print([(step.act.name, tuple(step.part), step.peer) for step in phase])
    [('SEND', (1, 3), 1)]
    [('TAKE', (1, 4), 1)]
    """
    num_ranks, mine = len(order), order.index(rank)
    leaving = consecutive(sizes[mine])
    arriving = consecutive([row[mine] for row in sizes])
    # Ranks send to different destinations in each turn, so that none receives from two at once.
    turns = range(1, num_ranks)
    after = [(mine + turn) % num_ranks for turn in turns]
    before = [(mine - turn) % num_ranks for turn in turns]
    # All sends come first: none of them depends on what arrives.
    return (
        [
            Step(Act.SEND, part, order[n], is_own=True)
            for n in after
            for part in leaving[n].pieces(message_size)
        ],
        [
            Step(Act.TAKE, part, order[n])
            for n in before
            for part in arriving[n].pieces(message_size)
        ],
    )


def barrier_phases(
    order: Sequence[int], rank: int, kind: BarrierKind = BarrierKind.DISSEMINATION
) -> Phases:
    """Return the steps after which every rank of `order` has begun them; messages are empty.

    Sources: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988, the
    dissemination barrier. The rendezvous is the barrier of gloo, whose sends to unbound buffers
    leave when the receiver has asked for them (`barrier.cc`, `transport/tcp/pair.cc`).

    >>> for phase in barrier_phases((0, 1, 2), 0):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 1), ('TAKE', 2)]
    [('SEND', 2), ('TAKE', 1)]
    """
    num_ranks, mine = len(order), order.index(rank)
    rounds: list[list[Step]] = []
    # The least number of rounds in which a signal reaches all; a rank alone has none.
    for distance in (2**k for k in range((num_ranks - 1).bit_length())):
        after, before = (order[(mine + far) % num_ranks] for far in (distance, -distance))
        if kind is BarrierKind.RENDEZVOUS:
            rounds.append(_signal(to=before, wait_for=after))  # the requests
        rounds.append(_signal(to=after, wait_for=before))
    return rounds


def _signal(*, to: int, wait_for: int) -> list[Step]:
    nothing = ElementRange(0, 0)
    return [Step(Act.SEND, nothing, to, is_own=True), Step(Act.TAKE, nothing, wait_for)]
