"""Some devices of a cluster, as a cluster of their own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topo import Cluster


def part(cluster: Cluster, devices: Sequence[int], *, name: str | None = None) -> Cluster:
    """Return the cluster of these devices alone, in this order, under its name or a new one.

    >>> import topo
    >>> part(topo.load("two-region"), (0, 2)).regions
    ('ohio', 'virginia')
    """
    grid = np.ix_(devices, devices)
    chosen = tuple(cluster.devices[device] for device in devices)
    hosts = {device.host for device in chosen}
    return replace(
        cluster,
        name=name or cluster.name,
        devices=chosen,
        hosts=tuple(host for host in cluster.hosts if host.name in hosts),
        latency_s=cluster.latency_s[grid],
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s[grid],
        alone_bytes_per_s=cluster.alone_bytes_per_s[grid],
    )
