"""Tree algorithms: reduce to the leader of a sync tree, broadcast from it, or all-reduce by both.

Each island's leader adds what the leaders of its members send, in the members' order; then each
leader sends the total back to them::

    ((0, 2), (5, 7))         0 <------- 5        reduce: 0 adds 2, 5 adds 7, then 0 adds 5
                           0 <- 2     5 <- 7     broadcast: 0 to 5, then 0 to 2 and 5 to 7

A flat tree is a central parameter server, a nested one a chain. In an all-reduce the leader sends a
chunk back as soon as it is complete.
"""

from jaxpipe.collective.shards import Part
from jaxpipe.collective.step import Act, Phases, Step
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks


def tree_phases(tree: SyncTree, rank: int, chunk: Part) -> Phases:
    """Return the steps of `rank` in an all-reduce of one chunk.

    >>> for phase in tree_phases((0, 1), 1, Part(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 0)]
    [('TAKE', 0)]
    """
    up, down = _reduce(tree, rank, chunk), _broadcast(tree, rank, chunk, is_own=False)
    # The leader's sends are in its first phase: a chunk goes down without waiting for the others.
    return ([*up, *down], []) if rank == leader(tree) else (up, down)


def reduce_phases(tree: SyncTree, rank: int, chunk: Part) -> Phases:
    """Return the steps after which the leader of the tree has the sum of one chunk.

    >>> for phase in reduce_phases((0, 1), 0, Part(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('ADD', 1), ('SETTLE', -1)]
    """
    return (_reduce(tree, rank, chunk),)


def broadcast_phases(tree: SyncTree, rank: int, chunk: Part) -> Phases:
    """Return the steps after which every rank has the chunk that the leader of the tree brought.

    >>> for phase in broadcast_phases((0, 1), 0, Part(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 1)]
    """
    return (_broadcast(tree, rank, chunk, is_own=rank == leader(tree)),)


def _reduce(tree: SyncTree, rank: int, chunk: Part) -> list[Step]:
    below, above = children(tree, rank), parent(tree, rank)
    # The first addition reads the own array, so that no copy of it into the total is needed.
    adds = [
        Step(Act.ADD, chunk, child, is_own=position == 0) for position, child in enumerate(below)
    ]
    if above is None:
        return [*adds, Step(Act.SETTLE, chunk, is_own=not below)]
    return [*adds, Step(Act.SEND, chunk, above, is_own=not below)]


def _broadcast(tree: SyncTree, rank: int, chunk: Part, *, is_own: bool) -> list[Step]:
    above = parent(tree, rank)
    takes = [] if above is None else [Step(Act.TAKE, chunk, above)]
    # The outermost island first: its members still have to pass the total on.
    return [
        *takes,
        *(Step(Act.SEND, chunk, child, is_own) for child in reversed(children(tree, rank))),
    ]


def children(tree: SyncTree, rank: int) -> tuple[int, ...]:
    """Return the ranks whose sums `rank` adds, in order: innermost island first.

    >>> children(((0, 2), (5, 7)), 0)
    (2, 5)
    """
    if isinstance(tree, int):
        return ()
    inner = next(children(member, rank) for member in tree if rank in ranks(member))
    return inner + tuple(leader(member) for member in tree[1:]) if rank == leader(tree) else inner


def parent(tree: SyncTree, rank: int) -> int | None:
    """Return the rank to which `rank` sends its sum, or None for the leader of the whole tree.

    >>> [parent(((0, 2), (5, 7)), rank) for rank in (0, 2, 5, 7)]
    [None, 0, 0, 5]
    """
    if rank == leader(tree) or isinstance(tree, int):
        return None
    member = next(member for member in tree if rank in ranks(member))
    return leader(tree) if rank == leader(member) else parent(member, rank)
