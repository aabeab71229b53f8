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

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    SyncTree: TypeAlias = int | tuple["SyncTree", ...]
else:
    SyncTree: TypeAlias = int | tuple  # run-time type checkers reject a recursive alias


def ranks(tree: SyncTree) -> tuple[int, ...]:
    """Return the ranks of the tree, in order."""
    if isinstance(tree, int):
        return (tree,)
    return tuple(rank for member in tree for rank in ranks(member))


def leader(tree: SyncTree) -> int:
    """Return the first rank of the tree."""
    return tree if isinstance(tree, int) else leader(tree[0])


def to_leaders(tree: SyncTree) -> tuple[tuple[int, int], ...]:
    """Return the edges of a reduce, pairs of child and parent, farthest from the leader first.

    >>> to_leaders(((0, 2), (5, 7)))
    ((2, 0), (7, 5), (5, 0))
    """
    if isinstance(tree, int):
        return ()
    inside = tuple(hop for member in tree for hop in to_leaders(member))
    return inside + tuple((leader(member), leader(tree)) for member in tree[1:])


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
    return tree if isinstance(tree, int) else chain([chained(member) for member in tree])


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
    if isinstance(tree, int):
        return tree
    members = tuple(pruned(member) for member in tree)
    return members[0] if len(members) == 1 else members
