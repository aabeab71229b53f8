"""The steps of a rank in each collective: all-reduce by the name of the algorithm, and the others.

Arrays are flat and travel in messages of about `message_size` elements, which follow each other::

    all_reduce_steps        every rank brings the array, and has the sum       any AllReduceKind
    reduce_scatter_steps    every rank brings the array, and has its share     ring
    all_gather_steps        every rank brings its share, and has the array     ring
    broadcast_steps         the leader brings the array, and all have it       sync tree
    all_to_all_steps        every rank brings a block for each, and gets one   pairwise
"""

from collections.abc import Callable, Sequence
from math import ceil

from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.pairwise import all_to_all_phases
from jaxpipe.collective.ring import all_gather_phases, reduce_scatter_phases
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.step import Phases, PhasesOf, Step, moved, weave
from jaxpipe.collective.sync_tree import SyncTree, ranks
from jaxpipe.collective.tree import broadcast_phases


def all_reduce_phases(algorithm: AllReduceKind, tree: SyncTree) -> PhasesOf:
    """Return the steps of each rank in an all-reduce of one chunk; `algorithm` is not `LIBRARY`.

    What all ranks share is derived here, once, and not at each rank.
    """
    phases = algorithm.facts.phases
    assert phases is not None, algorithm
    return phases(tree)


def num_chunks(
    algorithm: AllReduceKind, *, num_ranks: int, size: float, message_size: float
) -> int:
    """Return how many chunks an all-reduce has, so that messages have about `message_size`.

    >>> num_chunks(AllReduceKind.RING, num_ranks=4, size=100, message_size=10)
    3
    """
    # The messages of the others are shares, a num_ranks-th of a chunk.
    per_chunk = message_size * (1 if algorithm.facts.sends_whole_chunks else num_ranks)
    return max(1, ceil(size / per_chunk))


def all_reduce_steps(
    algorithm: AllReduceKind, tree: SyncTree, rank: int, *, size: int, message_size: int
) -> list[Step]:
    """Return the steps after which every rank has the sum of `size` elements.

    >>> for step in all_reduce_steps(AllReduceKind.CHAIN, (0, 1), 0, size=8, message_size=4):
    ...     print(step.act.name, tuple(step.part))
    ADD (0, 4)
    SETTLE (0, 4)
    SEND (0, 4)
    ADD (4, 8)
    SETTLE (4, 8)
    SEND (4, 8)
    """
    count = num_chunks(algorithm, num_ranks=len(ranks(tree)), size=size, message_size=message_size)
    phases_of = all_reduce_phases(algorithm, tree)
    return _chunked(lambda chunk: phases_of(rank, chunk), size=size, num_chunks=count)


def broadcast_steps(tree: SyncTree, rank: int, *, size: int, message_size: int) -> list[Step]:
    """Return the steps after which every rank has the `size` elements of the tree's leader."""
    phases_of = broadcast_phases(tree)
    return _chunked(
        lambda chunk: phases_of(rank, chunk),
        size=size,
        num_chunks=ceil(size / message_size),  # of 0 elements: no chunk, no message
    )


def reduce_scatter_steps(
    order: Sequence[int], rank: int, *, size: int, message_size: int
) -> list[Step]:
    """Return the steps after which the n-th rank of `order` has the sum of the n-th share.

    Shares are those of `Part.cut`; some are empty if there are more ranks than elements.
    """
    pieces = _share_pieces(size, num_ranks=len(order), message_size=message_size)
    return list(weave([reduce_scatter_phases(order, rank, shares) for shares in pieces]))


def all_gather_steps(
    order: Sequence[int], rank: int, *, size: int, message_size: int
) -> list[Step]:
    """Return the steps after which every rank has the n-th share of the n-th rank, for all n."""
    pieces = _share_pieces(size, num_ranks=len(order), message_size=message_size)
    return list(weave([all_gather_phases(order, rank, shares) for shares in pieces]))


def all_to_all_steps(
    order: Sequence[int], rank: int, *, sizes: Sequence[Sequence[int]], message_size: int
) -> list[Step]:
    """Return the steps that move `sizes[n][j]` elements of the n-th rank to the j-th, for all n, j.

    Sends read what the rank brought, blocks in the order of their destinations; what arrives
    stands in the order of the sources.
    """
    return list(weave([all_to_all_phases(order, rank, sizes, message_size=message_size)]))


def _chunked(
    phases_of: Callable[[ElementRange], Phases], *, size: int, num_chunks: int
) -> list[Step]:
    """Return the woven steps of all chunks; those of equal size differ by their offset alone."""
    chunks = ElementRange(0, size).cut(num_chunks) if size else ()
    # Derived once for each size, of which `cut` gives two at most: a chunk has many steps.
    by_size = {size: phases_of(ElementRange(0, size)) for size in {chunk.size for chunk in chunks}}
    return list(weave([moved(by_size[chunk.size], chunk.start) for chunk in chunks]))


def _share_pieces(
    size: int, *, num_ranks: int, message_size: int
) -> list[tuple[ElementRange, ...]]:
    """Return the shares of an array, cut into as many pieces each: the n-th pieces of all shares.

    Not the shares of pieces of the array: a rank's own share has to be one part of it.
    """
    shares = ElementRange(0, size).cut(num_ranks)
    # By the largest share: the n-th pieces of all shares have to exist.
    count = ceil(max(share.size for share in shares) / message_size)
    return list(zip(*(share.cut(count) for share in shares), strict=True)) if count else []
