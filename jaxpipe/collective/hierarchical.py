"""Hierarchical all-reduce: reduce-scatter in islands, exchange across them, all-gather in islands.

In an island each member sends the others their shares, and adds what they send. Then the rank that
holds a share exchanges it with the ranks that hold the same elements in the other islands, all at
once, each over its own links. `jaxpipe.collective.shards` says which ranks exchange what.

At the root, two members swap: each sends the other what it holds, and adds, in one latency instead
of two. Three or more reduce-scatter once more. Then the shares return, first between islands, then
inside them.

A flat tree is a sharded parameter server; a tree of halves is recursive halving and doubling, for
any number of ranks.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.4; Cho et al., "BlueConnect", SysML 2019.
"""

from collections.abc import Iterator, Sequence
from functools import cache

from jaxpipe.collective.all_reduce_facts import AllReduceFacts, ClosedForm
from jaxpipe.collective.shards import ElementRange, ShareGroup, groups_by_rank
from jaxpipe.collective.step import Act, Phases, PhasesOf, Step
from jaxpipe.collective.sync_tree import SyncTree, flat, halves, pruned, ranks


def hierarchical_phases(tree: SyncTree) -> PhasesOf:
    """Return the steps of each rank on one chunk.

    >>> for phase in hierarchical_phases(((0, 1), (2, 3)))(0, ElementRange(0, 8)):
    ...     print([(step.act.name, tuple(step.part), step.peer) for step in phase])
    [('SEND', (4, 8), 1)]
    [('ADD', (0, 4), 1), ('SETTLE', (0, 4), -1), ('SEND', (0, 4), 2)]
    [('ADD', (0, 4), 2), ('SETTLE', (0, 4), -1), ('SEND', (0, 4), 1)]
    [('TAKE', (4, 8), 1)]
    """
    # An island of one member would be a level without messages.
    root = pruned(tree)
    if isinstance(root, int):
        return lambda _, chunk: ([Step(Act.SETTLE, chunk, is_own=True)],)
    # Once for all ranks: the groups of one rank follow from the shares of all others.
    levels_of = cache(lambda chunk: groups_by_rank(root, chunk))
    swaps = len(root) == 2
    return lambda rank, chunk: _phases(levels_of(chunk)[rank], rank, swaps=swaps)


HIERARCHICAL = AllReduceFacts(
    phases=hierarchical_phases,
    closed_form=ClosedForm.ISLANDS,
    is_ranked=True,
    has_far_messages=True,
)
SHARDED = AllReduceFacts(
    phases=lambda tree: hierarchical_phases(flat(ranks(tree))),
    closed_form=ClosedForm.SHARES,
    is_ranked=True,
)
HALVING = AllReduceFacts(
    phases=lambda tree: hierarchical_phases(halves(ranks(tree))),
    # From below, unless the number of ranks is a power of two.
    closed_form=ClosedForm.SHARES,
)


def _phases(levels: Sequence[list[ShareGroup]], rank: int, *, swaps: bool) -> Phases:
    phases: list[list[Step]] = [[]]
    for height, level in enumerate(levels):
        is_own, is_far = height == 0, height == len(levels) - 1
        if is_far and swaps:
            phases[-1] += _swap_sends(level, rank, is_own=is_own)
            phases.append(_swap_adds(level, rank))
        else:
            phases[-1] += _scatter_sends(level, rank, is_own=is_own, is_far=is_far)
            phases.append(_scatter_adds(level, rank, is_own=is_own, is_far=is_far))
    if not swaps:
        phases[-1] += _settle(levels[-1], rank)
        phases[-1] += _gather_sends(levels[-1], rank, is_far=True)
        phases.append(_gather_takes(levels[-1], rank, is_far=True))
    for level in reversed(levels[:-1]):
        phases[-1] += _gather_sends(level, rank, is_far=False)
        phases.append(_gather_takes(level, rank, is_far=False))
    # With more ranks than elements some shares are empty: they need no message.
    return [[step for step in phase if step.part.size] for phase in phases]


def _shares(
    level: list[ShareGroup], rank: int
) -> Iterator[tuple[ElementRange, list[tuple[int, ElementRange]]]]:
    """Return each share of `rank`, and the other ranks with theirs.

    The next rank comes first, so that no port is the first destination of two ranks at once.
    """
    for part, group in level:
        shares, mine = part.cut(len(group)), group.index(rank)
        others = [(mine + turn) % len(group) for turn in range(1, len(group))]
        yield shares[mine], [(group[index], shares[index]) for index in others]


def _scatter_sends(level: list[ShareGroup], rank: int, *, is_own: bool, is_far: bool) -> list[Step]:
    return [
        Step(Act.SEND, share, other, is_own, is_far)
        for _, others in _shares(level, rank)
        for other, share in others
    ]


def _scatter_adds(level: list[ShareGroup], rank: int, *, is_own: bool, is_far: bool) -> list[Step]:
    # In the order in which the others send to this rank; it fixes the order of the additions.
    return [
        # The first addition reads the own array: nothing has been written to the total yet.
        Step(Act.ADD, mine, other, is_own and turn == 0, is_far)
        for mine, others in _shares(level, rank)
        for turn, (other, _) in enumerate(reversed(others))
    ]


def _settle(level: list[ShareGroup], rank: int) -> list[Step]:
    # First as far messages round it, then as near ones do: all ranks get the same bits.
    return [
        Step(Act.SETTLE, mine, is_far=is_far)
        for mine, _ in _shares(level, rank)
        for is_far in (True, False)
    ]


def _gather_sends(level: list[ShareGroup], rank: int, *, is_far: bool) -> list[Step]:
    return [
        Step(Act.SEND, mine, other, is_far=is_far)
        for mine, others in _shares(level, rank)
        for other, _ in others
    ]


def _gather_takes(level: list[ShareGroup], rank: int, *, is_far: bool) -> list[Step]:
    return [
        step
        for _, others in _shares(level, rank)
        # Reversed, as in `_scatter_adds`: the rank just before this one sends here first.
        for other, share in reversed(others)
        for step in (
            Step(Act.TAKE, share, other, is_far=is_far),
            *([Step(Act.SETTLE, share)] if is_far else []),
        )
    ]


def _swap_sends(level: list[ShareGroup], rank: int, *, is_own: bool) -> list[Step]:
    """Settle what `rank` holds, so that both sides add the same bits, and send it."""
    return [
        step
        for part, pair in level
        for step in (
            Step(Act.SETTLE, part, is_own=is_own, is_far=True),
            Step(Act.SEND, part, _other(pair, rank), is_far=True),
        )
    ]


def _swap_adds(level: list[ShareGroup], rank: int) -> list[Step]:
    return [
        step
        for part, pair in level
        for step in (
            Step(Act.ADD, part, _other(pair, rank), is_far=True),
            Step(Act.SETTLE, part),
        )
    ]


def _other(pair: tuple[int, ...], rank: int) -> int:
    return pair[1 - pair.index(rank)]
