"""The all-reduces of the runtime as the messages that they are, by the name of the algorithm."""

from collections import defaultdict
from collections.abc import Iterator

from jaxpipe.collective import AllReduceKind, SyncTree, ranks
from jaxpipe.collective.shards import Part, meetings
from jaxpipe.collective.sync_tree import chain, flat, halves, pruned
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import num_chunks
from jaxpipe.simulate.collective import Collective, Transfer, ring, tree_sum

_UNITS = 2**40
"""An array in units so small that cutting them evenly is exact enough."""


def all_reduce_messages(
    kind: AllReduceKind, tree: SyncTree, *, num_bytes: float, chunk_bytes: float
) -> Collective:
    """Return the messages that sum `num_bytes` over the ranks of a tree.

    Chunks follow each other: messages have `chunk_bytes` at most, those of a ring a p-th of all.

    Raises:
        PlanError: it is the library's own, of which nothing is known.
    """
    members = ranks(tree)
    if kind is AllReduceKind.LIBRARY:
        raise PlanError(
            f"what an MPI library does inside is not simulated: `all_reduce` is {kind}; take "
            f"another one, such as {AllReduceKind.HIERARCHICAL}"
        )
    if len(members) == 1:
        return ()
    if kind is AllReduceKind.RING:
        return ring(members, num_bytes)
    whole = {AllReduceKind.TREE: tree, AllReduceKind.CHAIN: chain(members)}
    whole[AllReduceKind.CENTRAL] = flat(members)
    if kind in whole:
        chunks = num_chunks(num_bytes, chunk_bytes=chunk_bytes)
        return tree_sum(whole[kind], num_bytes, num_chunks=chunks)
    shared = {
        AllReduceKind.HIERARCHICAL: tree,
        AllReduceKind.SHARDED: flat(members),
        AllReduceKind.HALVING: halves(members),
    }
    chunks = num_chunks(num_bytes, chunk_bytes=chunk_bytes * len(members))
    return share_sum(shared[kind], num_bytes, num_chunks=chunks)


def share_sum(tree: SyncTree, num_bytes: float, *, num_chunks: int) -> Collective:
    """Share sums out inside islands, exchange shares between them, gather inside again.

    >>> for transfer in share_sum(((0, 1), (2, 3)), 8.0, num_chunks=1):
    ...     if transfer.source == 0:
    ...         print(transfer.destination, transfer.num_bytes, transfer.after)
    1 4.0 ()
    2 4.0 (1,)
    1 4.0 (1, 5)

    Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005, section 4.4; Cho et al., "BlueConnect", SysML 2019.
    """
    pruned_tree = pruned(tree)
    if isinstance(pruned_tree, int):
        return ()
    levels = list(_levels(pruned_tree))
    swaps = len(pruned_tree) == 2
    transfers: list[Transfer] = []
    for _ in range(num_chunks):
        heard: dict[int, tuple[int, ...]] = defaultdict(tuple)
        unit = num_bytes / num_chunks / _UNITS
        for height, islands in enumerate(levels):
            is_last = height == len(levels) - 1
            _send(transfers, heard, islands, unit, keep=is_last and swaps)
        for islands in reversed(levels[:-1] if swaps else levels):
            _send(transfers, heard, islands, unit, back=True)
    return tuple(transfers)


def _levels(tree: SyncTree) -> Iterator[list[SyncTree]]:
    """Return the islands of each height above the ranks, lowest first; the last is the tree."""
    heights: dict[int, list[SyncTree]] = defaultdict(list)

    def measure(island: SyncTree) -> int:
        if isinstance(island, int):
            return 0
        height = 1 + max(measure(member) for member in island)
        heights[height].append(island)
        return height

    measure(tree)
    for height in sorted(heights):
        yield heights[height]


def _send(
    transfers: list[Transfer],
    heard: dict[int, tuple[int, ...]],
    islands: list[SyncTree],
    unit: float,
    *,
    keep: bool = False,
    back: bool = False,
) -> None:
    """Add what the members of islands send each other: their shares, or back, or all of it."""
    arriving: dict[int, list[int]] = defaultdict(list)
    for island in islands:
        for part, holders in meetings(island, Part(0, _UNITS)):
            shares = part.cut(len(holders))
            for source, own in zip(holders, shares, strict=True):
                for destination, share in zip(holders, shares, strict=True):
                    if source == destination:
                        continue
                    moved = part if keep else own if back else share
                    arriving[destination].append(len(transfers))
                    transfers.append(
                        Transfer(source, destination, moved.size * unit, heard[source])
                    )
    for rank, positions in arriving.items():
        heard[rank] = (*heard[rank], *positions)
