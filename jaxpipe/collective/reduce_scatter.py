"""In shares: islands reduce-scatter, exchange the shares between them, and all-gather.

In an island each member sends the others their parts, and adds what they send. Then the holder of a
share exchanges it with the holders of the same elements in the other islands, all holders at once,
each over its own links. Who meets whom stands in `jaxpipe.collective.shards`.

The last exchange, between the members of the whole tree, is a swap if there are two: each sends the
other what it holds and adds, in one latency instead of two. Three or more share out once more.
Then the parts go the other way, first between islands, then inside them.

A flat tree is a sharded parameter server; a tree of halves is recursive halving and doubling, for
any number of ranks.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.4; Cho et al., "BlueConnect", SysML 2019.
"""

from collections.abc import Iterator

from jaxpipe.collective.shards import Meeting, Part, meetings
from jaxpipe.collective.step import Act, Phases, Step
from jaxpipe.collective.sync_tree import SyncTree, pruned, ranks


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
