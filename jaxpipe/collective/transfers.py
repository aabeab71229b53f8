"""Collectives as messages: the transfers of the very steps that run, for simulators and planners.

A collective is a tuple of transfers; each names those that have to arrive before it can leave::

    rank 0   ADD from 1, SEND to 1        transfer 0: 1 -> 0
    rank 1   SEND to 0, TAKE from 0       transfer 1: 0 -> 1, after 0

A send waits for all receives that precede it in its rank's steps, as in execution. Chunks do not
wait for each other: their receives are posted ahead, and links carry them one after the other.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from jaxpipe.collective.algorithms import all_reduce_phases, all_to_all_steps, num_chunks
from jaxpipe.collective.codec.codec_facts import NO_CODING, Coding
from jaxpipe.collective.kinds import AllReduceKind, BarrierKind
from jaxpipe.collective.pairwise import barrier_phases
from jaxpipe.collective.ring import all_gather_phases, reduce_scatter_phases
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.step import Act, PhasesOf, Step, weave
from jaxpipe.collective.sync_tree import SyncTree, ranks
from jaxpipe.collective.tree import broadcast_phases, reduce_phases
from jaxpipe.errors import PlanError

_CHUNK = ElementRange(0, 2**60)
"""A chunk in units so small that cutting it evenly is exact in double precision."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a collective; `after` are the positions of those that it waits for.

    With a codec, it leaves once its source has encoded it, and has arrived once its destination has
    decoded it, which takes the seconds of `coding`.
    """

    source: int
    destination: int
    num_bytes: float
    after: tuple[int, ...] = ()
    coding: Coding = NO_CODING


Collective: TypeAlias = tuple[Transfer, ...]


def transfers(
    programs: Mapping[int, Sequence[Step]],
    *,
    bytes_per_element: float = 1.0,
    far_ratio: float = 1.0,
    far_coding: Coding = NO_CODING,
) -> Collective:
    """Return the messages of the steps of all ranks, each after those that it waits for.

    Far messages have `far_ratio` of the bytes of their elements, that of a codec, which takes
    `far_coding` for each of these bytes.
    Of several messages from one rank a send waits for the last one: links keep their order.

    >>> from jaxpipe.collective.algorithms import all_reduce_steps
    >>> programs = {
    ...     rank: all_reduce_steps(AllReduceKind.RING, (3, 5), rank, size=2, message_size=1)
    ...     for rank in (3, 5)
    ... }
    >>> [(t.source, t.destination, t.num_bytes, t.after) for t in transfers(programs)]
    [(3, 5, 1.0, ()), (5, 3, 1.0, ()), (5, 3, 1.0, (0,)), (3, 5, 1.0, (1,))]
    """
    derivation = _Derivation(bytes_per_element, far_ratio, far_coding)
    left = {rank: deque(steps) for rank, steps in programs.items()}
    position = {rank: index for index, rank in enumerate(programs)}
    order = list(programs)
    # Rounds over the ranks in their order, which skip those whose message has not been sent: of a
    # chain of p ranks only one can run in each of p rounds.
    turns = [(0, index) for index in range(len(order))]
    heapify(turns)
    while turns:
        turn, index = heappop(turns)
        for other in derivation.advance(order[index], left[order[index]]):
            later = position[other] > index
            heappush(turns, (turn if later else turn + 1, position[other]))
    stuck = sorted(rank for rank, steps in left.items() if steps)
    assert not stuck, f"ranks {stuck} wait for messages that no step sends"
    assert not any(derivation.sent.values()), "messages are sent that no step receives"
    return tuple(derivation.moved)


class _Derivation:
    """A symbolic execution of the steps of all ranks, which records what they send."""

    def __init__(self, bytes_per_element: float, far_ratio: float, far_coding: Coding) -> None:
        self.moved: list[Transfer] = []
        self.sent: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._latest: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._after: dict[int, tuple[int, ...]] = {}
        self._waits_for: dict[int, int] = {}
        self._bytes_per_element = bytes_per_element
        self._far_ratio = far_ratio
        self._far_coding = far_coding

    def advance(self, rank: int, steps: deque[Step]) -> list[int]:
        """Execute the steps of a rank up to the first receive whose message has not been sent.

        Returns the ranks that waited for one of the messages that it has sent.
        """
        woken: list[int] = []
        while steps:
            step = steps[0]
            if step.act is Act.SEND:
                self._send(rank, step)
                if self._waits_for.get(step.peer) == rank:
                    del self._waits_for[step.peer]
                    woken.append(step.peer)
            elif step.act in (Act.ADD, Act.TAKE):
                # One queue per pair of ranks: the messages of a pair never overtake each other.
                if not self.sent[step.peer, rank]:
                    self._waits_for[rank] = step.peer
                    break
                self._latest[rank][step.peer] = self.sent[step.peer, rank].popleft()
                self._after.pop(rank, None)
            steps.popleft()
        return woken

    def _send(self, rank: int, step: Step) -> None:
        self.sent[rank, step.peer].append(len(self.moved))
        num_bytes = step.part.size * self._bytes_per_element
        coding = NO_CODING
        if step.is_far:
            # One object for all messages without a codec: there are many.
            has_coding = self._far_coding is not NO_CODING
            coding = self._far_coding.times(num_bytes) if has_coding else NO_CODING
            num_bytes *= self._far_ratio
        # One tuple for all sends between two receives: a leader of p ranks sends p after p.
        if rank not in self._after:
            self._after[rank] = tuple(sorted(self._latest[rank].values()))
        self.moved.append(Transfer(rank, step.peer, num_bytes, self._after[rank], coding))


def side_by_side(collective: Collective, *, times: int) -> Collective:
    """Return `times` copies of a collective, none of which waits for another."""
    size = len(collective)
    return tuple(
        Transfer(
            transfer.source,
            transfer.destination,
            transfer.num_bytes,
            tuple(number * size + need for need in transfer.after),
            transfer.coding,
        )
        for number in range(times)
        for transfer in collective
    )


def in_sequence(first: Collective, second: Collective) -> Collective:
    """Return both, in which the second starts at each rank once the first has reached that rank.

    >>> [t.after for t in in_sequence((Transfer(0, 1, 1.0),), (Transfer(1, 0, 1.0),))]
    [(), (0,)]
    """
    arrived: defaultdict[int, list[int]] = defaultdict(list)
    for position, transfer in enumerate(first):
        arrived[transfer.destination].append(position)
    moved = [
        Transfer(
            transfer.source,
            transfer.destination,
            transfer.num_bytes,
            (*arrived[transfer.source], *(len(first) + need for need in transfer.after)),
            transfer.coding,
        )
        for transfer in second
    ]
    return (*first, *moved)


def chunked_transfers(
    phases_of: PhasesOf,
    members: Sequence[int],
    *,
    num_bytes: float,
    num_chunks: int = 1,
    far_ratio: float = 1.0,
    far_coding: Coding = NO_CODING,
) -> Collective:
    """Return the messages of a collective whose steps on a chunk are `phases_of(rank, chunk)`."""
    programs = {rank: list(weave([phases_of(rank, _CHUNK)])) for rank in members}
    # One chunk is derived, then copied: chunks differ by their offset alone.
    unit = num_bytes / num_chunks / _CHUNK.size
    one = transfers(programs, bytes_per_element=unit, far_ratio=far_ratio, far_coding=far_coding)
    return side_by_side(one, times=num_chunks)


def all_reduce_transfers(
    kind: AllReduceKind,
    tree: SyncTree,
    *,
    num_bytes: float,
    chunk_bytes: float = inf,
    far_ratio: float = 1.0,
    far_coding: Coding = NO_CODING,
) -> Collective:
    """Return the messages of an all-reduce, as `all_reduce_steps` sends them.

    Messages have at most `chunk_bytes`, except those of a ring, which have a p-th of `num_bytes`:
    a ring is not worth its latency unless that is large enough. A codec leaves `far_ratio` of the
    bytes across the root of the tree, and takes the seconds of `far_coding` for each byte that it
    encodes, in a hierarchical all-reduce: others have no far messages.

    >>> for transfer in all_reduce_transfers(
    ...     AllReduceKind.HIERARCHICAL, ((0, 1), (2, 3)), num_bytes=8.0
    ... ):
    ...     if transfer.source == 0:
    ...         print(transfer.destination, transfer.num_bytes, transfer.after)
    1 4.0 ()
    2 4.0 (1,)
    1 4.0 (1, 9)

    Raises:
        PlanError: `kind` is a library's native all-reduce, whose messages are not known.
    """
    if kind.facts.is_native:
        raise PlanError(
            f"`plan.all_reduce` must not be {kind} in a simulation, which does not know the "
            "messages of a native library; choose another one, such as "
            f"{AllReduceKind.HIERARCHICAL}"
        )
    members = ranks(tree)
    message_size = chunk_bytes if kind.facts.is_simulated_in_chunks else inf
    return chunked_transfers(
        all_reduce_phases(kind, tree),
        members,
        num_bytes=num_bytes,
        num_chunks=num_chunks(
            kind, num_ranks=len(members), size=num_bytes, message_size=message_size
        ),
        # Other algorithms are built of the same steps, and use no codec.
        far_ratio=far_ratio if kind.facts.has_far_messages else 1.0,
        far_coding=far_coding if kind.facts.has_far_messages else NO_CODING,
    )


def reduce_transfers(tree: SyncTree, *, num_bytes: float, num_chunks: int = 1) -> Collective:
    """Return the messages of a reduce to the leader of a tree."""
    return chunked_transfers(
        reduce_phases(tree),
        ranks(tree),
        num_bytes=num_bytes,
        num_chunks=num_chunks,
    )


def broadcast_transfers(tree: SyncTree, *, num_bytes: float, num_chunks: int = 1) -> Collective:
    """Return the messages of a broadcast from the leader of a tree."""
    return chunked_transfers(
        broadcast_phases(tree),
        ranks(tree),
        num_bytes=num_bytes,
        num_chunks=num_chunks,
    )


def reduce_scatter_transfers(
    order: Sequence[int], *, num_bytes: float, num_chunks: int = 1
) -> Collective:
    """Return the messages of a reduce-scatter around a ring, of `num_bytes` at each rank."""
    return chunked_transfers(
        lambda rank, chunk: reduce_scatter_phases(order, rank, chunk.cut(len(order))),
        order,
        num_bytes=num_bytes,
        num_chunks=num_chunks,
    )


def all_gather_transfers(
    order: Sequence[int], *, num_bytes: float, num_chunks: int = 1
) -> Collective:
    """Return the messages of an all-gather around a ring, of `num_bytes` in all."""
    return chunked_transfers(
        lambda rank, chunk: all_gather_phases(order, rank, chunk.cut(len(order))),
        order,
        num_bytes=num_bytes,
        num_chunks=num_chunks,
    )


def all_to_all_transfers(
    order: Sequence[int],
    sizes: Sequence[Sequence[int]],
    *,
    message_size: int,
    bytes_per_element: float = 1.0,
) -> Collective:
    """Return the messages that move `sizes[n][j]` elements of the n-th rank to the j-th."""
    steps = {
        rank: all_to_all_steps(order, rank, sizes=sizes, message_size=message_size)
        for rank in order
    }
    return transfers(steps, bytes_per_element=bytes_per_element)


def barrier_transfers(
    members: Sequence[int], kind: BarrierKind = BarrierKind.DISSEMINATION
) -> Collective:
    """Return the empty messages of a barrier.

    >>> [(t.source, t.destination, t.after) for t in barrier_transfers((0, 1))]
    [(0, 1, ()), (1, 0, ())]
    """
    return transfers(
        {
            rank: [step for phase in barrier_phases(members, rank, kind) for step in phase]
            for rank in members
        }
    )
