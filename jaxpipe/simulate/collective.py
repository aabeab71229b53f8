"""Collectives as the messages that they are: who sends which part to whom, after what.

A collective is a tuple of transfers; each names those that have to arrive before it can leave::

    rank 0 <── rank 1 <── rank 2 <── rank 3      a chain reduces towards its first rank
    rank 0 ──> rank 1 ──> rank 2 ──> rank 3      and broadcasts back, in chunks

With n ranks on links of one rate and latency a, b bytes take (C chunks)::

    chain              2 ((1 + (n - 2) / C) b / rate + (n - 1) a)   the broadcast waits for the sum
    duplex chain       (1 + (2 n - 3) / C) b / rate + 2 (n - 1) a   each chunk turns round at once
    ring               2 (n - 1) (b / n / rate + a)
    sharded server     2 (b / n / rate + a)                         if only pairs limit the rate
    central server     2 (b / rate + a)                             likewise
    barrier            ceil(log2 n) a
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxpipe.collective import SyncTree, leader, to_leaders


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a collective; `after` are the positions of those that it waits for."""

    source: int
    destination: int
    num_bytes: float
    after: tuple[int, ...] = ()


Collective: TypeAlias = tuple[Transfer, ...]

Algorithm: TypeAlias = Callable[[Sequence[int], float], Collective]
"""Given the ranks in order, and the bytes that each of them holds: the transfers."""


def chain(tree: SyncTree, num_bytes: float, *, num_chunks: int, is_duplex: bool) -> Collective:
    """Reduce along a sync tree to its leader, then broadcast back.

    The ranks of an island pass their sums along to the island's leader, then the leaders do. Of a
    tree without islands that is a plain chain. Duplex: each chunk turns round as soon as it is
    summed, so that both directions of a link are busy at once, and the time is that of one pass
    over the slowest link instead of two.

    >>> for transfer in chain((4, (7, 9)), 8.0, num_chunks=1, is_duplex=False):
    ...     print(transfer.source, transfer.destination, transfer.after)
    9 7 ()
    7 4 (0,)
    4 7 (1,)
    7 9 (2,)
    """
    return _up_and_down(
        _ascent(tree), leader(tree), num_bytes, num_chunks=num_chunks, is_duplex=is_duplex
    )


def tree_sum(tree: SyncTree, num_bytes: float, *, num_chunks: int) -> Collective:
    """Sum along a sync tree as the runtime does: leaders of members send to their island's leader.

    Each chunk turns round as soon as it is summed.

    >>> for transfer in tree_sum((4, (7, 9), 2), 8.0, num_chunks=1):
    ...     print(transfer.source, transfer.destination, transfer.after)
    9 7 ()
    7 4 (0,)
    2 4 ()
    4 2 (1, 2)
    4 7 (1, 2)
    7 9 (4,)
    """
    return _up_and_down(
        list(to_leaders(tree)), leader(tree), num_bytes, num_chunks=num_chunks, is_duplex=True
    )


def _up_and_down(
    hops: list[tuple[int, int]], root: int, num_bytes: float, *, num_chunks: int, is_duplex: bool
) -> Collective:
    """Pass chunks along all hops, child to parent and farthest first, then back from the root."""
    chunk = num_bytes / num_chunks
    transfers: list[Transfer] = []
    turns: list[tuple[int, ...]] = []
    for _ in range(num_chunks):
        heard: dict[int, tuple[int, ...]] = {}
        for child, parent in hops:
            heard[parent] = (*heard.get(parent, ()), len(transfers))
            transfers.append(Transfer(child, parent, chunk, heard.get(child, ())))
        turns.append(heard.get(root, ()))
    for turn in turns:
        told = {root: turn if is_duplex else turns[-1]}
        for child, parent in reversed(hops):
            told[child] = (len(transfers),)
            transfers.append(Transfer(parent, child, chunk, told[parent]))
    return tuple(transfers)


def _ascent(tree: SyncTree) -> list[tuple[int, int]]:
    """Return who passes its sum to whom in a chain, farthest from the leader first."""
    if isinstance(tree, int):
        return []
    leaders = [leader(member) for member in tree]
    inside = [hop for member in tree for hop in _ascent(member)]
    return inside + list(zip(leaders[:0:-1], leaders[-2::-1], strict=True))


def ring(members: Sequence[int], num_bytes: float) -> Collective:
    """Reduce-scatter and all-gather around a ring, each rank sending to the one after it.

    >>> [(t.source, t.destination, t.num_bytes, t.after) for t in ring((3, 5), 8.0)]
    [(3, 5, 4.0, ()), (5, 3, 4.0, ()), (3, 5, 4.0, (1,)), (5, 3, 4.0, (0,))]
    """
    n = len(members)
    return tuple(
        Transfer(
            source,
            members[(i + 1) % n],
            num_bytes / n,
            () if step == 0 else ((step - 1) * n + (i - 1) % n,),
        )
        for step in range(2 * (n - 1))
        for i, source in enumerate(members)
    )


def binary_tree(members: Sequence[int], *, num_bytes: float, num_chunks: int) -> Collective:
    """Reduce up a binary tree, whose nodes add two children each, and broadcast down, in chunks.

    Member i is the parent of members 2 i + 1 and 2 i + 2.

    >>> tree = binary_tree((0, 1, 2), num_bytes=1.0, num_chunks=1)
    >>> [(t.source, t.destination, t.after) for t in tree]
    [(2, 0, ()), (1, 0, ()), (0, 1, (0, 1)), (0, 2, (0, 1))]
    """
    edges = [(i, (i - 1) // 2) for i in range(1, len(members))]
    transfers: list[Transfer] = []
    for _ in range(num_chunks):
        heard: dict[int, tuple[int, ...]] = {}
        chunk = num_bytes / num_chunks
        for child, parent in reversed(edges):
            heard[parent] = (*heard.get(parent, ()), len(transfers))
            up = Transfer(members[child], members[parent], chunk, heard.get(child, ()))
            transfers.append(up)
        for child, parent in edges:
            down = Transfer(members[parent], members[child], chunk, heard[parent])
            heard[child] = (len(transfers),)
            transfers.append(down)
    return tuple(transfers)


def central_server(members: Sequence[int], num_bytes: float) -> Collective:
    """Send everything to the first rank, which sends the sum to all.

    >>> [(t.source, t.destination, t.after) for t in central_server((0, 1, 2), 1.0)]
    [(1, 0, ()), (2, 0, ()), (0, 1, (0, 1)), (0, 2, (0, 1))]
    """
    server, *others = members
    everything = tuple(range(len(others)))
    return (
        *(Transfer(other, server, num_bytes) for other in others),
        *(Transfer(server, other, num_bytes, everything) for other in others),
    )


def sharded_server(members: Sequence[int], num_bytes: float) -> Collective:
    """Every rank sums an equal part: all send it the part, and it sends the sum to all.

    >>> [(t.source, t.destination, t.after) for t in sharded_server((3, 5), 8.0)]
    [(3, 5, ()), (5, 3, ()), (3, 5, (1,)), (5, 3, (0,))]
    """
    part = num_bytes / len(members)
    pairs = [(a, b) for a in members for b in members if a != b]
    parts = {
        rank: tuple(i for i, (_, server) in enumerate(pairs) if server == rank) for rank in members
    }
    return (
        *(Transfer(source, server, part) for source, server in pairs),
        *(Transfer(server, other, part, parts[server]) for server, other in pairs),
    )


def barrier(members: Sequence[int]) -> Collective:
    """Let nobody leave before everybody has come.

    In round k each rank tells the one `2**k` after it what it has heard, as the runtime's does.

    >>> [(t.source, t.destination, t.after) for t in barrier((0, 1, 2))]
    [(0, 1, ()), (1, 2, ()), (2, 0, ()), (0, 2, (2,)), (1, 0, (0,)), (2, 1, (1,))]

    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988, the
    dissemination barrier.
    """
    n = len(members)
    distances = [2**k for k in range((n - 1).bit_length())]
    return tuple(
        Transfer(
            source,
            members[(i + distance) % n],
            0.0,
            tuple(before * n + (i - distances[before]) % n for before in range(k)),
        )
        for k, distance in enumerate(distances)
        for i, source in enumerate(members)
    )
