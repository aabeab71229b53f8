"""The sync tree: how an all-reduce ascends and descends the network.

A tree is a rank (an `int`) or a tuple of trees. Each inner node is an island: its members are
joined by links that are faster than those that leave it. The leader of a tree is its first rank::

    ((0, 2), (5, 7))            two islands of two ranks each

         0 <------- 5           leaders meet over the slow link
       0 <- 2     5 <- 7        islands sum first, over their own links

>>> ranks(((0, 2), (5, 7)))
(0, 2, 5, 7)
>>> leader(((0, 2), (5, 7)))
0
"""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    SyncTree: TypeAlias = int | tuple["SyncTree", ...]
else:
    SyncTree: TypeAlias = int | tuple  # checkers at run time know no recursive alias


def ranks(tree: SyncTree) -> tuple[int, ...]:
    """Return the ranks of the tree, in order."""
    if isinstance(tree, int):
        return (tree,)
    return tuple(rank for member in tree for rank in ranks(member))


def leader(tree: SyncTree) -> int:
    """Return the first rank of the tree."""
    return tree if isinstance(tree, int) else leader(tree[0])


def to_leaders(tree: SyncTree) -> tuple[tuple[int, int], ...]:
    """Return who passes its sum to whom, pairs of child and parent, farthest from the leader first.

    >>> to_leaders(((0, 2), (5, 7)))
    ((2, 0), (7, 5), (5, 0))
    """
    if isinstance(tree, int):
        return ()
    inside = tuple(hop for member in tree for hop in to_leaders(member))
    return inside + tuple((leader(member), leader(tree)) for member in tree[1:])
