"""Who holds which share of a sum, when islands of a sync tree share sums out among their members.

The members of an island cut the array among themselves. Then the holder of a share meets the
holders of the same elements in the other islands. Islands of unequal sizes meet on the
intersections of their shares::

    ((0, 1, 2), (3, 4))      0     1     2        shares of the first island, thirds
                             |--0--|--1--|--2--|
                             |---3----|---4----|  shares of the second one, halves
                              0-3  1-3 1-4  2-4   who meets whom
"""

from itertools import pairwise
from typing import NamedTuple

from jaxpipe.collective.sync_tree import SyncTree


class Part(NamedTuple):
    """The elements `start .. stop - 1` of a flat array."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many elements there are."""
        return self.stop - self.start

    def cut(self, num_parts: int) -> tuple["Part", ...]:
        """Return parts of sizes that differ by one at most, in order; some may be empty.

        >>> [(part.start, part.stop) for part in Part(2, 7).cut(2)]
        [(2, 4), (4, 7)]
        """
        edges = [self.start + self.size * i // num_parts for i in range(num_parts + 1)]
        return tuple(Part(a, b) for a, b in pairwise(edges))


class Meeting(NamedTuple):
    """A part, and who holds it: one rank for each member of an island, in the members' order."""

    part: Part
    holders: tuple[int, ...]


def meetings(island: SyncTree, whole: Part) -> tuple[Meeting, ...]:
    """Return who meets whom on which part, when the members of an island have their own sums.

    >>> [(tuple(part), who) for part, who in meetings(((0, 1), 2), Part(0, 8))]
    [((0, 4), (0, 2)), ((4, 8), (1, 2))]
    """
    assert not isinstance(island, int), island
    members = [_holdings(member, whole) for member in island]
    edges = sorted({edge for holdings in members for part, _ in holdings for edge in part})
    places = [0] * len(members)
    met: list[Meeting] = []
    for start, stop in pairwise(edges):
        for index, holdings in enumerate(members):
            while holdings[places[index]][0].stop <= start:
                places[index] += 1
        holders = (holdings[place][1] for holdings, place in zip(members, places, strict=True))
        met.append(Meeting(Part(start, stop), tuple(holders)))
    return tuple(met)


def _holdings(tree: SyncTree, whole: Part) -> list[tuple[Part, int]]:
    """Return who holds which part of the tree's sum, in order of the parts, none of them empty."""
    if isinstance(tree, int):
        return [(whole, tree)]
    return [
        (share, holder)
        for part, holders in meetings(tree, whole)
        for share, holder in zip(part.cut(len(holders)), holders, strict=True)
        if share.size
    ]
