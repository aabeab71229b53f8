"""The sync tree: how an all-reduce ascends and descends the network.

A tree is a rank (an `int`) or a tuple of trees. Each inner node is an island: its members are
joined by links that are faster than those that leave it. The leader of a tree is its first rank::

    ((0, 2), (5, 7))            two islands of two ranks each

         0 <------- 5           leaders reduce over the slow link
       0 <- 2     5 <- 7        islands reduce first, over their own links

>>> ranks(((0, 2), (5, 7)))
(0, 2, 5, 7)
>>> leader(((0, 2), (5, 7)))
0

Common shapes::

    flat (0, 1, 2, 3)       chain (0, (1, (2, 3)))       halves ((0, 1), (2, 3))
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    SyncTree: TypeAlias = int | tuple["SyncTree", ...]
else:
    SyncTree: TypeAlias = int | tuple  # run-time type checkers reject a recursive alias


_T = TypeVar("_T")


def folded(
    tree: SyncTree, *, at_rank: Callable[[int], _T], at_island: Callable[[list[_T]], _T]
) -> _T:
    """Return what `at_island` makes of the results of an island's members, up to the whole tree.

    Members come before their island, and in their order. The tree may be as deep as memory allows.

    >>> folded(((0, 2), (5, 7)), at_rank=lambda rank: 1, at_island=sum)
    4
    """
    # A stack of its own: a chain is as deep as it has ranks, Python's stack is 1,000 calls deep.
    pending: list[tuple[SyncTree, bool]] = [(tree, False)]
    results: list[_T] = []
    while pending:
        node, are_members_done = pending.pop()
        if isinstance(node, int):
            results.append(at_rank(node))
        elif are_members_done:
            first = len(results) - len(node)
            results[first:] = [at_island(results[first:])]
        else:
            pending.append((node, True))
            pending += [(member, False) for member in reversed(node)]
    return results[0]


def ranks(tree: SyncTree) -> tuple[int, ...]:
    """Return the ranks of the tree, in order."""
    members: list[int] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, int):
            members.append(node)
        else:
            pending += reversed(node)
    return tuple(members)


def leader(tree: SyncTree) -> int:
    """Return the first rank of the tree."""
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def to_leaders(tree: SyncTree) -> tuple[tuple[int, int], ...]:
    """Return the edges of a reduce, pairs of child and parent, farthest from the leader first.

    >>> to_leaders(((0, 2), (5, 7)))
    ((2, 0), (7, 5), (5, 0))
    """
    edges: list[tuple[int, int]] = []

    def join(leaders: list[int]) -> int:
        edges.extend((leader, leaders[0]) for leader in leaders[1:])
        return leaders[0]

    folded(tree, at_rank=int, at_island=join)
    return tuple(edges)


def flat(order: Sequence[int]) -> SyncTree:
    """Return the tree whose members are the ranks themselves.

    >>> flat((3, 1)), flat((3,))
    ((3, 1), 3)
    """
    return tuple(order) if len(order) > 1 else order[0]


def chain(order: Sequence[SyncTree]) -> SyncTree:
    """Return the tree in which each member receives the sum of its successors from the next one.

    >>> chain((3, 1, 2)), chain(((3, 4), 1, 2))
    ((3, (1, 2)), ((3, 4), (1, 2)))
    """
    tree = order[-1]
    for member in order[-2::-1]:
        tree = (member, tree)
    return tree


def chained(tree: SyncTree) -> SyncTree:
    """Return the tree in which the members of each island form a chain instead of a star.

    >>> chained(((3, 4, 5), 1, 2))
    ((3, (4, 5)), (1, 2))
    """
    return folded(tree, at_rank=_itself, at_island=chain)


def halves(order: Sequence[int]) -> SyncTree:
    """Return the binary tree of halves, down to single ranks.

    >>> halves((0, 1, 2, 3, 4))
    (((0, 1), 2), (3, 4))
    """
    if len(order) == 1:
        return order[0]
    middle = (len(order) + 1) // 2
    return (halves(order[:middle]), halves(order[middle:]))


def pruned(tree: SyncTree) -> SyncTree:
    """Return the tree with each island of a single member replaced by that member.

    >>> pruned((((4,), 1), (2,)))
    ((4, 1), 2)
    """
    return folded(
        tree,
        at_rank=_itself,
        at_island=lambda members: members[0] if len(members) == 1 else tuple(members),
    )


def restricted(tree: SyncTree, members: Collection[int]) -> SyncTree:
    """Return the tree over those of its ranks that are among `members`, of which it has some.

    >>> restricted(((0, 2), (5, (6, 7))), {2, 6, 7}), restricted((0, 2), {2})
    ((2, (6, 7)), 2)
    """

    def at_rank(rank: int) -> SyncTree:
        return rank if rank in members else ()

    def at_island(island: list[SyncTree]) -> SyncTree:
        return tuple(child for child in island if child != ())

    return pruned(folded(tree, at_rank=at_rank, at_island=at_island))


def relabelled(tree: SyncTree, labels: Mapping[int, int]) -> SyncTree:
    """Return the tree with each rank replaced by its label.

    >>> relabelled(((0, 2), 5), {0: 1, 2: 3, 5: 4})
    ((1, 3), 4)
    """
    return folded(tree, at_rank=lambda rank: labels[rank], at_island=tuple)


def _itself(rank: int) -> SyncTree:
    return rank
