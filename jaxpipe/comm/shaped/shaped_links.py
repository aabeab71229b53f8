r"""The links from one rank to all others, as far as the rank can emulate them alone.

They are the links of `jaxpipe.network`, the same as in the simulator; but each rank emulates those
that leave it in its own process, without word of the traffic of other ranks.

========================================  =========================================================
exact                                     queues, bandwidth and latency of each link; messages of
                                          one rank that share its host's NIC
approximate: the rank assumes that all    a rank has an even share of its host's egress, and of the
others are as busy as can be              token bucket before it, also while the other ranks of the
                                          host are silent (too slow); and of a trunk between
                                          regions, among the ranks of its own
approximate: a rank cannot see messages   a link is limited by the receiver's even share of its
that others send to its receiver          host's ingress; several senders that meet at one receiver
                                          do not slow each other down (too fast)
========================================  =========================================================

Where hosts have no limit, as in clusters whose links were shaped pair by pair, all of it is exact.
`jaxpipe.paced` emulates shared NICs exactly, with one process that sees the messages of all ranks;
so it needs all of them on one machine, and messages so small that they take no time there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxpipe.network import Clock, Link, MessageCosts, open_links
from jaxpipe.topo import Cluster, Device, Host, with_slower_links


def links_of_rank(
    clock: Clock, cluster: Cluster, devices: Sequence[int], *, rank: int, scale: float = 1.0
) -> list[Link]:
    """Return the links from a rank to all ranks, itself included; rank r is on `devices[r]`.

    `scale` multiplies all latencies and all seconds per byte.

    >>> from jaxpipe import topo
    >>> from jaxpipe.network import EventQueue
    >>> queue = EventQueue()
    >>> links = links_of_rank(queue, topo.load("two-region"), (0, 2), rank=0)
    >>> links[1].send(140_000_000, lambda: print(queue.now_s))  # at 1.12 Gbps
    >>> queue.run()
    1.011

    Raises:
        ValueError: `scale` is not above 0.
    """
    view = with_slower_links(_view_of_rank(cluster, devices, rank=rank), scale=scale)
    costs, pairs = MessageCosts(), [(rank, other) for other in range(len(devices))]
    links = open_links(clock, view, {costs: pairs}, nic_efficiency=1.0)[costs]
    return [links[pair] for pair in pairs]


def _view_of_rank(cluster: Cluster, devices: Sequence[int], *, rank: int) -> Cluster:
    """Return a cluster of ranks, NICs divided evenly among the ranks of a host.

    ::

        cluster        (0 1)    (2 3)      two hosts, NICs of 10 Gbps
        of rank 0      (0 1)  (2)  (3)     its own host; one for each rank elsewhere; 5 Gbps each
    """
    hosts = [cluster.hosts[cluster.host_of[device]] for device in devices]
    num_sharers = Counter(host.name for host in hosts)
    shares = [
        Host(
            name="own" if host is hosts[rank] else f"rank-{number}",
            region=host.region,
            egress_bytes_per_s=host.egress_bytes_per_s / num_sharers[host.name],
            ingress_bytes_per_s=host.ingress_bytes_per_s / num_sharers[host.name],
            burst_bytes=host.burst_bytes / num_sharers[host.name],
        )
        for number, host in enumerate(hosts)
    ]
    grid = np.ix_(devices, devices)
    regions = Counter(host.region for host in hosts)
    return Cluster(
        name=cluster.name,
        devices=tuple(
            Device(name=f"rank-{number}", host=share.name, region=share.region)
            for number, share in enumerate(shares)
        ),
        hosts=tuple(dict.fromkeys(shares)),
        trunks=tuple(
            replace(trunk, bytes_per_s=trunk.bytes_per_s / regions[trunk.source])
            for trunk in cluster.trunks
            if regions[trunk.source] and regions[trunk.destination]
        ),
        latency_s=cluster.latency_s[grid],
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s[grid],
        alone_bytes_per_s=cluster.alone_bytes_per_s[grid],
    )
