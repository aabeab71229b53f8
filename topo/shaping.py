"""What has to be done to a host's outgoing packets, so that a network behaves like a cluster.

Each peer host has its own latency and rate; all of them together share the host's NIC, and those of
another region the trunk to it, with what other hosts send there.
"""

from dataclasses import dataclass

import numpy as np

from jaxpipe.topo.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedPeer:
    """How packets to another host are delayed and paced, and which part of them is lost.

    `trunk` is the number of the cluster's trunk that they share with others, if any.
    """

    host: str
    latency_s: float
    bytes_per_s: float
    trunk: int | None = None
    jitter_s: float = 0.0
    loss: float = 0.0


def shaped_peers(cluster: Cluster, host: str) -> tuple[ShapedPeer, ...]:
    """Return how the packets of one host to each other host are to be shaped.

    Devices of two hosts share the way between the hosts, so it is as fast as the fastest of their
    links is alone, and as near as the nearest.

    Raises:
        ValueError: the cluster has no such host, or no limit to a bandwidth between hosts.
    """
    names = [host.name for host in cluster.hosts]
    if host not in names:
        raise ValueError(f"cluster {cluster.name!r} has no host {host!r}: it has {names}")
    host_of = np.array(cluster.host_of)
    here = np.flatnonzero(host_of == names.index(host))
    region, trunks = cluster.hosts[names.index(host)].region, cluster.trunk_numbers
    peers: list[ShapedPeer] = []
    for index, name in enumerate(names):
        there = np.flatnonzero(host_of == index)
        if name == host or not len(there) or not len(here):
            continue
        pairs = np.ix_(here, there)
        bytes_per_s = float(cluster.alone_bytes_per_s[pairs].max())
        if not np.isfinite(bytes_per_s):
            raise ValueError(f"`bandwidth_gbps` from {host!r} to {name!r} is infinite: limit it")
        latency_s = float(cluster.latency_s[pairs].min())
        trunk = trunks.get((region, cluster.hosts[index].region))
        peers.append(
            ShapedPeer(host=name, latency_s=latency_s, bytes_per_s=bytes_per_s, trunk=trunk)
        )
    return tuple(peers)
