"""Who talks to whom when a network is measured, so that no measurement disturbs another.

Hosts meet as players in a round-robin tournament, whose rounds are by the circle method: one stays,
the others turn. When two hosts meet, their devices take turns, each direction by itself::

    hosts 0 1 2 3      0-3 1-2  |  0-2 3-1  |  0-1 2-3
    with 2 devices each, a meeting has 2 x 2 pairs x 2 directions = 8 rounds

Source: T. P. Kirkman, "On a problem in combinations", 1847, for the tournament.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations, product, zip_longest
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
Round: TypeAlias = tuple[Pair, ...]


def rounds(host_of: Sequence[int]) -> tuple[Round, ...]:
    """Return rounds of (source, destination) ranks; `host_of[rank]` is the host of a rank.

    Each ordered pair comes exactly once, and in a round a host takes part in one pair at most.

    >>> rounds((0, 1, 2))
    (((1, 2),), ((2, 1),), ((0, 2),), ((2, 0),), ((0, 1),), ((1, 0),))
    >>> rounds((0, 0))
    (((0, 1),), ((1, 0),))
    """
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(host_of):
        ranks.setdefault(host, []).append(rank)
    return (
        *_together([list(permutations(members, 2)) for members in ranks.values()]),
        *(
            together
            for meetings in _tournament(list(ranks))
            for together in _together([_both_ways(ranks[a], ranks[b]) for a, b in meetings])
        ),
    )


def nic_rounds(host_of: Sequence[int]) -> tuple[tuple[int, Round], ...]:
    """Return, for each host of several devices, the host and who talks to measure what leaves it.

    All its devices send at once, each to another device elsewhere, to as many hosts as there are.
    Turned around, the pairs measure what enters it.

    >>> nic_rounds((0, 0, 1, 2))
    ((0, ((0, 2), (1, 3))),)
    """
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(host_of):
        ranks.setdefault(host, []).append(rank)
    rounds: list[tuple[int, Round]] = []
    for host, members in ranks.items():
        columns = zip_longest(*(others for other, others in ranks.items() if other != host))
        elsewhere = [rank for column in columns for rank in column if rank is not None]
        pairs = tuple(zip(members, elsewhere, strict=False))
        if len(pairs) > 1:
            rounds.append((host, pairs))
    return tuple(rounds)


def trunk_rounds(
    host_of: Sequence[int], region_of: Sequence[str]
) -> tuple[tuple[tuple[str, str], Round], ...]:
    """Return, for each two regions of several hosts, their names and who talks across at once.

    One device of each host sends, to a host that no other sends to: what they share then is the
    way between the regions, and no NIC.

    >>> trunk_rounds((0, 0, 1, 2, 3), ("west", "west", "west", "east", "east"))[0]
    (('west', 'east'), ((0, 3), (2, 4)))
    """
    first: dict[int, int] = {}
    for rank, host in enumerate(host_of):
        first.setdefault(host, rank)
    members: dict[str, list[int]] = {}
    for rank in first.values():
        members.setdefault(region_of[rank], []).append(rank)
    return tuple(
        ((a, b), tuple(zip(members[a], members[b], strict=False)))
        for a, b in permutations(members, 2)
        if min(len(members[a]), len(members[b])) > 1
    )


def _tournament(players: list[int]) -> Iterator[list[Pair]]:
    """Yield rounds in which every two players meet once; with an odd number, one rests."""
    circle: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    half = len(circle) // 2
    # n - 1 rounds meet all pairs; the first player stays, all others move on by one.
    for _ in range(len(circle) - 1):
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(a, b) for a, b in opposite if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _both_ways(here: list[int], there: list[int]) -> list[Pair]:
    return [pair for a, b in product(here, there) for pair in ((a, b), (b, a))]


def _together(turns: list[list[Pair]]) -> Iterator[Round]:
    """Yield rounds that take one pair of each list, until all lists are used up."""
    for pairs in zip_longest(*turns):
        yield tuple(pair for pair in pairs if pair is not None)
