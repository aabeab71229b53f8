"""Which all-reduce is fastest for some bytes over some links."""

import numpy as np

from jaxpipe.plan.cost.collective import central_s, chain_s, hierarchical_s, num_chunks, ring_s
from jaxpipe.plan.cost.link import Links
from jaxpipe.plan.cost.shares import halving_s, shares_s
from jaxpipe.schedule import AllReduceKind, SyncTree, ranks
from jaxpipe.schedule.tree_shape import flat


def fastest_algorithm(
    links: Links, tree: SyncTree, *, num_bytes: float, chunk_bytes: float = 2**20
) -> tuple[AllReduceKind, float]:
    """Return the fastest way to sum `num_bytes` over the members of `tree`, and its seconds.

    Those without a tree take the members in its order. The library's own is not among them: what
    it does is not known. Of equal ones the first in `AllReduceKind` is taken.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> fastest_algorithm(links, (0, 1, 2, 3), num_bytes=4)
    (<AllReduceKind.HIERARCHICAL: 'hierarchical'>, 8.0)
    """
    seconds = algorithms_s(links, tree, num_bytes=num_bytes, chunk_bytes=chunk_bytes)
    fastest = min(seconds, key=lambda kind: seconds[kind])
    return fastest, seconds[fastest]


def algorithms_s(
    links: Links, tree: SyncTree, *, num_bytes: float, chunk_bytes: float = 2**20
) -> dict[AllReduceKind, float]:
    """Return the seconds that each way takes, but for the library's own.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(2, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> seconds = algorithms_s(links, (0, 1), num_bytes=4)
    >>> seconds[AllReduceKind.SHARDED], seconds[AllReduceKind.CENTRAL]
    (5.0, 10.0)
    """
    order = ranks(tree)
    both = np.ix_(order, order)
    along = Links(latency_s=links.latency_s[both], seconds_per_byte=links.seconds_per_byte[both])
    chunks = num_chunks(num_bytes, chunk_bytes=chunk_bytes)
    return {
        AllReduceKind.TREE: hierarchical_s(
            links, tree, num_bytes=num_bytes, chunk_bytes=chunk_bytes
        ),
        AllReduceKind.HIERARCHICAL: shares_s(links, tree, num_bytes=num_bytes),
        AllReduceKind.RING: ring_s(along, num_bytes=num_bytes),
        AllReduceKind.HALVING: halving_s(along, num_bytes=num_bytes),
        AllReduceKind.CHAIN: chain_s(along, num_bytes=num_bytes, num_chunks=chunks),
        AllReduceKind.SHARDED: shares_s(links, flat(order), num_bytes=num_bytes),
        AllReduceKind.CENTRAL: central_s(along, num_bytes=num_bytes),
    }
