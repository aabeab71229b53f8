"""Parts of a flat array, and which ranks reduce which part in a hierarchical all-reduce.

The members of an island divide the array among themselves. Then the rank that holds a share
exchanges it with those that hold the same elements in the other islands. Islands of unequal sizes
exchange the intersections of their shares::

    ((0, 1, 2), (3, 4))      0     1     2        shares of the first island, thirds
                             |--0--|--1--|--2--|
                             |---3----|---4----|  shares of the second one, halves
                              0-3  1-3 1-4  2-4   pairs of ranks that exchange
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple, TypeAlias

from jaxpipe.collective.sync_tree import SyncTree, folded


class ElementRange(NamedTuple):
    """The elements `start .. stop - 1` of a flat array."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.stop - self.start

    def cut(self, num_parts: int) -> tuple["ElementRange", ...]:
        """Return parts of sizes that differ by one at most, in order; some may be empty.

        >>> [(part.start, part.stop) for part in ElementRange(2, 7).cut(2)]
        [(2, 4), (4, 7)]
        """
        # In integers: all ranks compute the same edges, for arrays of any size.
        edges = [self.start + self.size * i // num_parts for i in range(num_parts + 1)]
        return tuple(ElementRange(a, b) for a, b in pairwise(edges))

    def pieces(self, largest: int) -> tuple["ElementRange", ...]:
        """Return parts of at most `largest` elements, in order; an empty part has no pieces.

        >>> [tuple(part) for part in ElementRange(0, 5).pieces(2)], ElementRange(3, 3).pieces(2)
        ([(0, 1), (1, 3), (3, 5)], ())
        """
        return self.cut(ceil(self.size / largest)) if self.size else ()


def consecutive(sizes: Sequence[int]) -> tuple[ElementRange, ...]:
    """Return parts of these sizes, one after the other from element 0 on.

    >>> [tuple(part) for part in consecutive([2, 0, 3])]
    [(0, 2), (2, 2), (2, 5)]
    """
    return tuple(ElementRange(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))


class ShareGroup(NamedTuple):
    """A part, and the ranks that reduce it together: one of each member of an island, in order."""

    part: ElementRange
    ranks: tuple[int, ...]


def share_groups(island: SyncTree, full: ElementRange) -> tuple[ShareGroup, ...]:
    """Return which ranks reduce which part, once each member of an island has its own sum.

    >>> [(tuple(part), ranks) for part, ranks in share_groups(((0, 1), 2), ElementRange(0, 8))]
    [((0, 4), (0, 2)), ((4, 8), (1, 2))]
    """
    assert not isinstance(island, int), island
    return _groups([_shares(member, full) for member in island])


def groups_by_rank(tree: SyncTree, full: ElementRange) -> dict[int, list[list[ShareGroup]]]:
    """Return the groups of each rank, in each of the islands around it, innermost first.

    >>> for groups in groups_by_rank(((0, 1), 2), ElementRange(0, 8))[1]:
    ...     print([(tuple(part), ranks) for part, ranks in groups])
    [((0, 8), (0, 1))]
    [((4, 8), (1, 2))]
    """
    levels: dict[int, list[list[ShareGroup]]] = {}

    def at_rank(rank: int) -> tuple[list[int], _Shares]:
        levels[rank] = []
        return [rank], [(full, rank)]

    def at_island(members: list[tuple[list[int], _Shares]]) -> tuple[list[int], _Shares]:
        inside = [rank for ranks, _ in members for rank in ranks]
        groups = _groups([shares for _, shares in members])
        for rank in inside:
            levels[rank].append([])  # also of a rank without a share: levels count the islands
        for group in groups:
            for rank in group.ranks:
                levels[rank][-1].append(group)
        return inside, _shares_of(groups)

    folded(tree, at_rank=at_rank, at_island=at_island)
    return levels


_Shares: TypeAlias = list[tuple[ElementRange, int]]
"""The shares of the sum of a tree, none of them empty, each with the rank that holds it."""


def _groups(members: Sequence[_Shares]) -> tuple[ShareGroup, ...]:
    edges = sorted({edge for shares in members for part, _ in shares for edge in part})
    positions = [0] * len(members)
    groups: list[ShareGroup] = []
    for start, stop in pairwise(edges):
        for index, shares in enumerate(members):
            while shares[positions[index]][0].stop <= start:
                positions[index] += 1
        holders = (shares[at][1] for shares, at in zip(members, positions, strict=True))
        groups.append(ShareGroup(ElementRange(start, stop), tuple(holders)))
    return tuple(groups)


def _shares(tree: SyncTree, full: ElementRange) -> _Shares:
    return folded(
        tree,
        at_rank=lambda rank: [(full, rank)],
        at_island=lambda members: _shares_of(_groups(members)),
    )


def _shares_of(groups: Sequence[ShareGroup]) -> _Shares:
    return [
        (share, rank)
        for part, ranks in groups
        for share, rank in zip(part.cut(len(ranks)), ranks, strict=True)
        if share.size
    ]
