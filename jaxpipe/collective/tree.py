"""Along a sync tree: sums ascend to its leader, the total descends from it.

Each island's leader adds what the leaders of its members send, in the members' order; then each
leader sends the total back to them::

    ((0, 2), (5, 7))         0 <------- 5        ascend: 0 adds 2, 5 adds 7, then 0 adds 5
                           0 <- 2     5 <- 7     descend: 0 to 5, then 0 to 2 and 5 to 7

A flat tree is a central parameter server, a nested one a chain. The leader sends a chunk back as
soon as it is summed.
"""

from jaxpipe.collective.shards import Part
from jaxpipe.collective.step import Act, Phases, Step
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks


def tree_phases(tree: SyncTree, rank: int, chunk: Part) -> Phases:
    """Return the steps of `rank` on one chunk.

    >>> for phase in tree_phases((0, 1), 1, Part(0, 8)):
    ...     print([(step.act.name, step.peer) for step in phase])
    [('SEND', 0)]
    [('TAKE', 0)]
    """
    below, above = children(tree, rank), parent(tree, rank)
    up = [Step(Act.ADD, chunk, child, is_own=position == 0) for position, child in enumerate(below)]
    down = [Step(Act.SEND, chunk, child) for child in reversed(below)]
    if above is None:
        return ([*up, Step(Act.SETTLE, chunk, is_own=not below), *down], [])
    sends_up = Step(Act.SEND, chunk, above, is_own=not below)
    return ([*up, sends_up], [Step(Act.TAKE, chunk, above), *down])


def children(tree: SyncTree, rank: int) -> tuple[int, ...]:
    """Return the ranks whose sums `rank` adds to its own, in order: innermost island first.

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
