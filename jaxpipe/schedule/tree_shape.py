"""Sync trees of a given shape over ranks in a given order.

::

    flat (0, 1, 2, 3)       chain (0, (1, (2, 3)))       halves ((0, 1), (2, 3))
"""

from collections.abc import Sequence

from jaxpipe.schedule.sync_tree import SyncTree


def flat(order: Sequence[int]) -> SyncTree:
    """Return the tree whose members are the ranks.

    >>> flat((3, 1)), flat((3,))
    ((3, 1), 3)
    """
    return tuple(order) if len(order) > 1 else order[0]


def chain(order: Sequence[int]) -> SyncTree:
    """Return the tree in which each rank takes the sum of all that follow from its successor.

    >>> chain((3, 1, 2))
    (3, (1, 2))
    """
    tree: SyncTree = order[-1]
    for rank in order[-2::-1]:
        tree = (rank, tree)
    return tree


def halves(order: Sequence[int]) -> SyncTree:
    """Return the tree of two members, each of them a half, down to single ranks.

    >>> halves((0, 1, 2, 3, 4))
    (((0, 1), 2), (3, 4))
    """
    if len(order) == 1:
        return order[0]
    middle = (len(order) + 1) // 2
    return (halves(order[:middle]), halves(order[middle:]))


def pruned(tree: SyncTree) -> SyncTree:
    """Return the tree without islands of a single member: that member stands for them.

    >>> pruned((((4,), 1), (2,)))
    ((4, 1), 2)
    """
    if isinstance(tree, int):
        return tree
    members = tuple(pruned(member) for member in tree)
    return members[0] if len(members) == 1 else members
