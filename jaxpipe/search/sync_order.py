"""Choose the sync tree of a stage: its shape and the order of its ranks."""

from collections.abc import Iterator, Mapping
from math import inf

import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.collective.sync_tree import chain, flat, halves, relabelled
from jaxpipe.network.alpha_beta import links_between
from jaxpipe.plan.cost.collective_cost import tree_s
from jaxpipe.plan.sync import island_tree
from jaxpipe.search.dtfm.path import cheapest_path
from jaxpipe.topo import Cluster

_EXACT_PATH = 6
"""The largest number of ranks for an exact path: many trees are compared."""
_LONGEST_CHAIN = 256
"""A plan file writes a chain as arrays inside arrays, which a TOML reader reads to some depth only:
that of Python to about 480 (measured)."""


def fastest_tree(
    cluster: Cluster,
    devices: Mapping[int, int],
    *,
    num_bytes: float,
    chunk_bytes: float = inf,
) -> SyncTree:
    """Return the fastest of some sync trees over ranks, which `devices` maps to devices.

    Candidates are islands, a central server, a chain and a binary tree, each in the order of the
    ranks and along the cheapest path through the devices, in both directions.

    >>> from jaxpipe import topo
    >>> fastest_tree(topo.load("two-region"), {0: 0, 1: 2, 2: 1, 3: 3}, num_bytes=1e6)
    (0, 2, 1, 3)
    """
    ranks = tuple(devices)
    links = links_between(cluster, tuple(devices.values()))
    members = {rank: index for index, rank in enumerate(ranks)}  # links number their members from 0
    # `min` keeps the first of equal trees: islands, the least surprising shape.
    return min(
        _trees(cluster, devices, num_bytes=num_bytes),
        key=lambda tree: tree_s(
            links, relabelled(tree, members), num_bytes=num_bytes, chunk_bytes=chunk_bytes
        ),
    )


def suited_tree(
    kind: AllReduceKind,
    cluster: Cluster,
    devices: Mapping[int, int],
    *,
    num_bytes: float,
    chunk_bytes: float = inf,
) -> SyncTree:
    """Return the sync tree over ranks for an all-reduce of this kind.

    For one that fits any tree, it is the fastest. For the others it is the tree of hosts inside
    regions, in the order of the cheapest path: a deep tree would divide the array into very many
    shares.

    >>> from jaxpipe import topo
    >>> cluster, devices = topo.load("two-region"), {0: 0, 1: 2, 2: 1, 3: 3}
    >>> suited_tree(AllReduceKind.RING, cluster, devices, num_bytes=1e6)
    ((0, 2), (1, 3))
    """
    if kind.facts.fits_any_tree:
        return fastest_tree(cluster, devices, num_bytes=num_bytes, chunk_bytes=chunk_bytes)
    path = _path(cluster, devices, num_bytes=num_bytes)
    return island_tree({rank: cluster.devices[devices[rank]] for rank in path})


def _trees(cluster: Cluster, devices: Mapping[int, int], *, num_bytes: float) -> Iterator[SyncTree]:
    ranks, path = list(devices), _path(cluster, devices, num_bytes=num_bytes)
    for order in (ranks, path, path[::-1]):
        yield island_tree({rank: cluster.devices[devices[rank]] for rank in order})
        yield flat(order)
        if len(order) <= _LONGEST_CHAIN:
            yield chain(order)
        yield halves(order)


def _path(cluster: Cluster, devices: Mapping[int, int], *, num_bytes: float) -> list[int]:
    """Return the ranks along the cheapest path through their devices."""
    ranks = list(devices)
    both = np.ix_(tuple(devices.values()), tuple(devices.values()))
    hops = cluster.latency_s[both] + num_bytes / cluster.bandwidth_bytes_per_s[both]
    return [ranks[index] for index in cheapest_path(hops, largest_exact=_EXACT_PATH)]
