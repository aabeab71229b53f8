"""Tree algorithms: reduce to the leader of a sync tree, broadcast from it, or all-reduce by both.

Each island's leader adds what the leaders of its members send, in the members' order; then each
leader sends the total back to them::

    ((0, 2), (5, 7))         0 <------- 5        reduce: 0 adds 2, 5 adds 7, then 0 adds 5
                           0 <- 2     5 <- 7     broadcast: 0 to 5, then 0 to 2 and 5 to 7

A flat tree is a central parameter server, a nested one a chain. In an all-reduce the leader sends a
chunk back as soon as it is complete.
"""

from collections import defaultdict
from dataclasses import dataclass

from jaxpipe.collective.all_reduce_facts import AllReduceFacts, ClosedForm
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.step import Act, Phases, PhasesOf, Step
from jaxpipe.collective.sync_tree import SyncTree, chain, flat, leader, ranks, to_leaders


def tree_phases(tree: SyncTree) -> PhasesOf:
    """Return the steps of each rank in an all-reduce of one chunk.

    >>> for phase in tree_phases((0, 1))(1, ElementRange(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 0)]
    [('TAKE', 0)]
    """
    edges = Edges.of(tree)

    def phases_of(rank: int, chunk: ElementRange) -> Phases:
        up = _reduce(edges, rank, chunk)
        down = _broadcast(edges, rank, chunk, is_own=False)
        # The leader's sends are in its first phase: a chunk goes down without waiting for others.
        return ([*up, *down], []) if rank == edges.leader else (up, down)

    return phases_of


TREE = AllReduceFacts(
    phases=tree_phases,
    closed_form=ClosedForm.TREE,
    is_ranked=True,
    sends_whole_chunks=True,
    fits_any_tree=True,
)
# A search considers neither: a sync tree takes either shape if that is the fastest.
CHAIN = AllReduceFacts(
    phases=lambda tree: tree_phases(chain(ranks(tree))),
    closed_form=ClosedForm.TREE,
    is_searched=False,
    sends_whole_chunks=True,
)
CENTRAL = AllReduceFacts(
    phases=lambda tree: tree_phases(flat(ranks(tree))),
    closed_form=ClosedForm.TREE,
    is_searched=False,
    sends_whole_chunks=True,
)


def reduce_phases(tree: SyncTree) -> PhasesOf:
    """Return the steps after which the leader of the tree has the sum of one chunk.

    >>> for phase in reduce_phases((0, 1))(0, ElementRange(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('ADD', 1), ('SETTLE', -1)]
    """
    edges = Edges.of(tree)
    return lambda rank, chunk: (_reduce(edges, rank, chunk),)


def broadcast_phases(tree: SyncTree) -> PhasesOf:
    """Return the steps after which every rank has the chunk that the leader of the tree brought.

    >>> for phase in broadcast_phases((0, 1))(0, ElementRange(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 1)]
    """
    edges = Edges.of(tree)
    return lambda rank, chunk: (_broadcast(edges, rank, chunk, is_own=rank == edges.leader),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The parent of each rank, and its children in the order in which it adds: innermost first.

    >>> edges = Edges.of(((0, 2), (5, 7)))
    >>> edges.children[0], edges.children.get(7, [])
    ([2, 5], [])
    >>> [edges.parent.get(rank) for rank in (0, 2, 5, 7)]
    [None, 0, 0, 5]
    """

    leader: int
    parent: dict[int, int]
    children: dict[int, list[int]]

    @classmethod
    def of(cls, tree: SyncTree) -> "Edges":
        """Return the edges of a tree; cost: the number of its ranks."""
        children: defaultdict[int, list[int]] = defaultdict(list)
        # Inner islands come first: a leader adds the sums of its own island before those of others.
        for child, parent in to_leaders(tree):
            children[parent].append(child)
        return cls(leader=leader(tree), parent=dict(to_leaders(tree)), children=dict(children))


def _reduce(edges: Edges, rank: int, chunk: ElementRange) -> list[Step]:
    below, above = edges.children.get(rank, []), edges.parent.get(rank)
    # The first addition reads the own array, so that no copy of it into the total is needed.
    adds = [
        Step(Act.ADD, chunk, child, is_own=position == 0) for position, child in enumerate(below)
    ]
    if above is None:
        return [*adds, Step(Act.SETTLE, chunk, is_own=not below)]
    return [*adds, Step(Act.SEND, chunk, above, is_own=not below)]


def _broadcast(edges: Edges, rank: int, chunk: ElementRange, *, is_own: bool) -> list[Step]:
    above = edges.parent.get(rank)
    takes = [] if above is None else [Step(Act.TAKE, chunk, above)]
    below = edges.children.get(rank, [])
    # The outermost island first: its members still have to pass the total on.
    return [*takes, *(Step(Act.SEND, chunk, child, is_own) for child in reversed(below))]
