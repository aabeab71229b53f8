"""A cluster with other links than its own: none that take time, or all slower alike."""

from dataclasses import replace

import numpy as np

from topo import Cluster


def without_network(cluster: Cluster) -> Cluster:
    """Return the cluster with links and NICs that take no time.

    >>> import topo
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


def with_slower_links(cluster: Cluster, *, scale: float) -> Cluster:
    """Return the cluster with `scale` times the latency and the seconds per byte everywhere."""
    return replace(
        cluster,
        latency_s=cluster.latency_s * scale,
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
    )
