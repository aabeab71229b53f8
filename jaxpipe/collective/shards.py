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
from typing import NamedTuple

from jaxpipe.collective.sync_tree import SyncTree


class Part(NamedTuple):
    """The elements `start .. stop - 1` of a flat array."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.stop - self.start

    def cut(self, num_parts: int) -> tuple["Part", ...]:
        """Return parts of sizes that differ by one at most, in order; some may be empty.

        >>> [(part.start, part.stop) for part in Part(2, 7).cut(2)]
        [(2, 4), (4, 7)]
        """
        # In integers: all ranks compute the same edges, for arrays of any size.
        edges = [self.start + self.size * i // num_parts for i in range(num_parts + 1)]
        return tuple(Part(a, b) for a, b in pairwise(edges))

    def pieces(self, largest: int) -> tuple["Part", ...]:
        """Return parts of at most `largest` elements, in order; an empty part has no pieces.

        >>> [tuple(part) for part in Part(0, 5).pieces(2)], Part(3, 3).pieces(2)
        ([(0, 1), (1, 3), (3, 5)], ())
        """
        return self.cut(ceil(self.size / largest)) if self.size else ()


def consecutive(sizes: Sequence[int]) -> tuple[Part, ...]:
    """Return parts of these sizes, one after the other from element 0 on.

    >>> [tuple(part) for part in consecutive([2, 0, 3])]
    [(0, 2), (2, 2), (2, 5)]
    """
    return tuple(Part(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))


class ShareGroup(NamedTuple):
    """A part, and the ranks that reduce it together: one of each member of an island, in order."""

    part: Part
    ranks: tuple[int, ...]


def share_groups(island: SyncTree, whole: Part) -> tuple[ShareGroup, ...]:
    """Return which ranks reduce which part, once each member of an island has its own sum.

    >>> [(tuple(part), ranks) for part, ranks in share_groups(((0, 1), 2), Part(0, 8))]
    [((0, 4), (0, 2)), ((4, 8), (1, 2))]
    """
    assert not isinstance(island, int), island
    members = [_shares(member, whole) for member in island]
    edges = sorted({edge for shares in members for part, _ in shares for edge in part})
    positions = [0] * len(members)
    groups: list[ShareGroup] = []
    for start, stop in pairwise(edges):
        for index, shares in enumerate(members):
            while shares[positions[index]][0].stop <= start:
                positions[index] += 1
        holders = (shares[at][1] for shares, at in zip(members, positions, strict=True))
        groups.append(ShareGroup(Part(start, stop), tuple(holders)))
    return tuple(groups)


def _shares(tree: SyncTree, whole: Part) -> list[tuple[Part, int]]:
    """Return the shares of the tree's sum, none of them empty, each with the rank that holds it."""
    if isinstance(tree, int):
        return [(whole, tree)]
    return [
        (share, rank)
        for part, ranks in share_groups(tree, whole)
        for share, rank in zip(part.cut(len(ranks)), ranks, strict=True)
        if share.size
    ]
