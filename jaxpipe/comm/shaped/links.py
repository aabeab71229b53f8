r"""When the links that leave one rank would have delivered its messages: arithmetic, no waiting.

A message waits until its link is free, occupies it for its bytes over the bandwidth, and arrives a
latency after its last byte has left::

    posted   starts              leaves         arrives
       │ wait  │ bytes / bandwidth  │   latency    │

Each directed link carries one message at a time. What enters or leaves a host shares its NIC; a
rank cannot see what the other ranks of a host are about, so each has an even share of it, always:
all messages of a rank to other hosts pass its share of the egress one after the other, and no link
is faster than the receiver's share of the ingress. That is slower than a NIC whose other users are
silent, and it does not see several senders that meet at one receiver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topo import Cluster


@dataclass(frozen=True, slots=True)
class Passage:
    """When the last byte of a message leaves its link, and when it arrives: seconds, on a clock."""

    leaves_s: float
    arrives_s: float


class EmulatedLinks:
    """The links from one rank to all ranks; `devices` says on which device each rank runs.

    `scale` multiplies all latencies and all seconds per byte.

    >>> import topo
    >>> links = EmulatedLinks(topo.load("two-region"), (0, 2), rank=0)
    >>> links.carry(to=1, num_bytes=140_000_000, now_s=0.0)  # at 1.12 Gbps
    Passage(leaves_s=1.0, arrives_s=1.011)
    >>> links.carry(to=1, num_bytes=0, now_s=0.5)
    Passage(leaves_s=1.0, arrives_s=1.011)
    """

    def __init__(
        self, cluster: Cluster, devices: Sequence[int], *, rank: int, scale: float = 1.0
    ) -> None:
        assert scale > 0, scale
        source, host_of = devices[rank], cluster.host_of
        hosts = [host_of[device] for device in devices]
        sharers = [hosts.count(host) for host in hosts]
        crosses = np.array([host != hosts[rank] for host in hosts])
        ingress = [cluster.hosts[host].ingress_bytes_per_s for host in hosts]
        entering = np.where(crosses, np.array(sharers) / np.array(ingress), 0.0)
        alone = 1 / cluster.alone_bytes_per_s[source, list(devices)]
        leaving = sharers[rank] / cluster.hosts[hosts[rank]].egress_bytes_per_s
        self._latency_s = scale * cluster.latency_s[source, list(devices)]
        self._link_s_per_byte = scale * np.maximum(alone, entering)
        self._nic_s_per_byte = scale * np.where(crosses, leaving, 0.0)
        self._link_free_s = np.full(len(devices), -np.inf)
        self._nic_free_s = -np.inf

    def carry(self, *, to: int, num_bytes: int, now_s: float) -> Passage:
        """Occupy the link to the rank `to` with a message that is posted at `now_s`."""
        start_s = max(now_s, self._link_free_s[to])
        leaves_s = start_s + num_bytes * self._link_s_per_byte[to]
        nic_s = num_bytes * self._nic_s_per_byte[to]
        if nic_s > 0:
            self._nic_free_s = max(start_s, self._nic_free_s) + nic_s
            leaves_s = max(leaves_s, self._nic_free_s)
        self._link_free_s[to] = leaves_s
        return Passage(float(leaves_s), float(leaves_s + self._latency_s[to]))
