"""Clusters derived from others: some of the devices, slower links, no network, or more trunks."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from math import isfinite

import numpy as np

from jaxpipe.topo.cluster import Cluster, Trunk


def subcluster(cluster: Cluster, devices: Sequence[int], *, name: str | None = None) -> Cluster:
    """Return the cluster of some devices only, in this order, optionally under a new name.

    Each device may be given once; hosts without any of them are left out, and the trunks of
    regions without any.

    >>> from jaxpipe import topo
    >>> subcluster(topo.load("two-region"), (2, 0)).regions
    ('ohio', 'virginia')
    """
    grid = np.ix_(devices, devices)
    kept_devices = tuple(cluster.devices[device] for device in devices)
    hosts = {device.host for device in kept_devices}
    regions = {device.region for device in kept_devices}
    return replace(
        cluster,
        name=name or cluster.name,
        devices=kept_devices,
        hosts=tuple(host for host in cluster.hosts if host.name in hosts),
        trunks=tuple(
            trunk for trunk in cluster.trunks if {trunk.source, trunk.destination} <= regions
        ),
        latency_s=cluster.latency_s[grid],
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s[grid],
        alone_bytes_per_s=cluster.alone_bytes_per_s[grid],
    )


def with_slower_links(cluster: Cluster, *, scale: float) -> Cluster:
    """Return the cluster with `scale` times the latency and the seconds per byte everywhere.

    >>> from jaxpipe import topo
    >>> link = with_slower_links(topo.load("two-region"), scale=2.0).link(0, 2)
    >>> link.latency_s, link.bandwidth_bytes_per_s
    (0.022, 70000000.0)

    Raises:
        ValueError: `scale` is not above 0.
    """
    if not (scale > 0 and isfinite(scale)):
        raise ValueError(f"`scale` must be above 0, is {scale:g}")
    return replace(
        cluster,
        latency_s=cluster.latency_s * scale,
        # `scale` times the seconds per byte is 1 / scale of the rate.
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s / scale,
        alone_bytes_per_s=cluster.alone_bytes_per_s / scale,
        hosts=tuple(
            replace(
                host,
                egress_bytes_per_s=host.egress_bytes_per_s / scale,
                ingress_bytes_per_s=host.ingress_bytes_per_s / scale,
            )
            for host in cluster.hosts
        ),
        trunks=tuple(
            replace(trunk, bytes_per_s=trunk.bytes_per_s / scale) for trunk in cluster.trunks
        ),
    )


def without_network(cluster: Cluster) -> Cluster:
    """Return the cluster with links and NICs that take no time.

    >>> from jaxpipe import topo
    >>> without_network(topo.load("two-region")).latency_s.max()
    np.float64(0.0)
    """
    size = (len(cluster), len(cluster))
    return Cluster(
        name=cluster.name,
        devices=cluster.devices,
        latency_s=np.zeros(size),
        bandwidth_bytes_per_s=np.full(size, np.inf),
    )


def unshared_regions(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """Return the pairs of regions between which the cluster states no trunk: source, destination.

    >>> from jaxpipe import topo
    >>> unshared_regions(topo.load("two-region"))
    (('ohio', 'virginia'), ('virginia', 'ohio'))
    >>> unshared_regions(topo.load("fluidstack-2region"))
    ()
    """
    stated = cluster.trunk_numbers
    return tuple(way for way in permutations(cluster.regions, 2) if way not in stated)


def with_trunks_of_one_pair(cluster: Cluster) -> Cluster:
    """Return the cluster with a trunk between all regions, where it has none as fast as one link.

    The links from one region to another then share what the fastest of them has alone.

    >>> from jaxpipe import topo
    >>> [trunk.bytes_per_s for trunk in with_trunks_of_one_pair(topo.load("two-region")).trunks]
    [140000000.0, 140000000.0]
    """
    region_of = np.array([device.region for device in cluster.devices])

    def fastest(source: str, destination: str) -> float:
        pairs = np.ix_(region_of == source, region_of == destination)
        return float(cluster.alone_bytes_per_s[pairs].max(initial=0.0))

    rates = {way: fastest(*way) for way in unshared_regions(cluster)}
    added = tuple(
        Trunk(source=source, destination=destination, bytes_per_s=rate)
        for (source, destination), rate in rates.items()
        if 0 < rate < np.inf  # hosts without devices send nothing
    )
    return replace(cluster, trunks=(*cluster.trunks, *added))
