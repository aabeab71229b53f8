"""In shares: islands reduce-scatter, exchange the shares between them, and all-gather.

The members of an island cut the array among themselves; each sends the others their parts and adds
what they send. Then the holder of a share meets the holders of the same elements in the other
islands, all holders at once, each over its own links. Islands of unequal sizes meet on the
intersections of their shares::

    ((0, 1, 2), (3, 4))      0     1     2        shares of the first island, thirds
                             |--0--|--1--|--2--|
                             |---3----|---4----|  shares of the second one, halves
                              0-3  1-3 1-4  2-4   who exchanges what

The last exchange, between the members of the whole tree, is a swap if there are two: each sends the
other what it holds and adds, in one latency instead of two. Three or more share out once more.
Then the parts go the other way, first between islands, then inside them.

A flat tree is a sharded parameter server; a tree of halves is recursive halving and doubling, for
any number of ranks.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.4; Cho et al., "BlueConnect", SysML 2019.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from jaxpipe.comm.collective.step import Act, Part, Phases, Step
from jaxpipe.schedule.sync_tree import SyncTree, ranks
from jaxpipe.schedule.tree_shape import pruned


class Meeting(NamedTuple):
    """A part, and who holds it: one rank for each member of an island, in the members' order."""

    part: Part
    holders: tuple[int, ...]


def share_phases(tree: SyncTree, rank: int, chunk: Part) -> Phases:
    """Return the steps of `rank` on one chunk.

    >>> for phase in share_phases(((0, 1), (2, 3)), 0, Part(0, 8)):
    ...     print([(step.act.name, tuple(step.part), step.peer) for step in phase])
    [('SEND', (4, 8), 1)]
    [('ADD', (0, 4), 1), ('SETTLE', (0, 4), -1), ('SEND', (0, 4), 2)]
    [('ADD', (0, 4), 2), ('SETTLE', (0, 4), -1), ('SEND', (0, 4), 1)]
    [('TAKE', (4, 8), 1)]
    """
    tree = pruned(tree)
    if isinstance(tree, int):
        return ([Step(Act.SETTLE, chunk, is_own=True)],)
    islands = list(_islands(tree, rank))
    levels = [
        [meeting for meeting in meetings(island, chunk) if rank in meeting.holders]
        for island in islands
    ]
    swaps = len(tree) == 2
    phases: list[list[Step]] = [[]]
    for height, level in enumerate(levels):
        is_own, is_far = height == 0, height == len(levels) - 1
        if is_far and swaps:
            phases[-1] += _offer(level, rank, is_own=is_own)
            phases.append(_accept(level, rank))
        else:
            phases[-1] += _scatter(level, rank, is_own=is_own, is_far=is_far)
            phases.append(_sum(level, rank, is_own=is_own, is_far=is_far))
    if not swaps:
        phases[-1] += _settle(levels[-1], rank)
        phases[-1] += _tell(levels[-1], rank, is_far=True)
        phases.append(_hear(levels[-1], rank, is_far=True))
    for level in reversed(levels[:-1]):
        phases[-1] += _tell(level, rank, is_far=False)
        phases.append(_hear(level, rank, is_far=False))
    return [[step for step in phase if step.part.size] for phase in phases]


def meetings(island: SyncTree, chunk: Part) -> tuple[Meeting, ...]:
    """Return who meets whom on which part, when the members of an island have their own sums.

    >>> [(tuple(part), who) for part, who in meetings(((0, 1), 2), Part(0, 8))]
    [((0, 4), (0, 2)), ((4, 8), (1, 2))]
    """
    assert not isinstance(island, int), island
    members = [_holdings(member, chunk) for member in island]
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


def _holdings(tree: SyncTree, chunk: Part) -> list[tuple[Part, int]]:
    """Return who holds which part of the tree's sum, in order of the parts, none of them empty."""
    if isinstance(tree, int):
        return [(chunk, tree)]
    return [
        (share, holder)
        for part, holders in meetings(tree, chunk)
        for share, holder in zip(part.cut(len(holders)), holders, strict=True)
        if share.size
    ]


def _islands(tree: SyncTree, rank: int) -> Iterator[SyncTree]:
    """Return the islands around a rank, innermost first."""
    if isinstance(tree, int):
        return
    yield from _islands(next(member for member in tree if rank in ranks(member)), rank)
    yield tree


def _shares(level: list[Meeting], rank: int) -> Iterator[tuple[Part, list[tuple[int, Part]]]]:
    """Return each share of `rank`, and the others with theirs, from the one after it onwards."""
    for part, holders in level:
        shares, mine = part.cut(len(holders)), holders.index(rank)
        places = [(mine + turn) % len(holders) for turn in range(1, len(holders))]
        yield shares[mine], [(holders[place], shares[place]) for place in places]


def _scatter(level: list[Meeting], rank: int, *, is_own: bool, is_far: bool) -> list[Step]:
    return [
        Step(Act.SEND, share, other, is_own, is_far)
        for _, others in _shares(level, rank)
        for other, share in others
    ]


def _sum(level: list[Meeting], rank: int, *, is_own: bool, is_far: bool) -> list[Step]:
    return [
        Step(Act.ADD, mine, other, is_own and turn == 0, is_far)
        for mine, others in _shares(level, rank)
        for turn, (other, _) in enumerate(reversed(others))
    ]


def _settle(level: list[Meeting], rank: int) -> list[Step]:
    return [
        Step(Act.SETTLE, mine, is_far=is_far)
        for mine, _ in _shares(level, rank)
        for is_far in (True, False)
    ]


def _tell(level: list[Meeting], rank: int, *, is_far: bool) -> list[Step]:
    return [
        Step(Act.SEND, mine, other, is_far=is_far)
        for mine, others in _shares(level, rank)
        for other, _ in others
    ]


def _hear(level: list[Meeting], rank: int, *, is_far: bool) -> list[Step]:
    return [
        step
        for _, others in _shares(level, rank)
        for other, share in reversed(others)
        for step in (
            Step(Act.TAKE, share, other, is_far=is_far),
            *([Step(Act.SETTLE, share)] if is_far else []),
        )
    ]


def _offer(level: list[Meeting], rank: int, *, is_own: bool) -> list[Step]:
    """Settle what `rank` holds, so that both sides add the same bits, and send it."""
    return [
        step
        for part, holders in level
        for step in (
            Step(Act.SETTLE, part, is_own=is_own, is_far=True),
            Step(Act.SEND, part, _other(holders, rank), is_far=True),
        )
    ]


def _accept(level: list[Meeting], rank: int) -> list[Step]:
    return [
        step
        for part, holders in level
        for step in (
            Step(Act.ADD, part, _other(holders, rank), is_far=True),
            Step(Act.SETTLE, part),
        )
    ]


def _other(holders: tuple[int, ...], rank: int) -> int:
    return holders[1 - holders.index(rank)]
