"""Rings: the seconds of an all-gather around a ring of devices, with every hop of its own.

Each device sends its part to the next one, then forwards the others in the order of their arrival::

    device 0   ├ part 0 ┤├ part 3 ┤├ part 2 ┤
    device 1   ├ part 1 ┤     ├ part 0 ┤├ part 3 ┤        a slow hop makes the parts queue,
    device 2   ├ part 2 ┤├ part 1 ┤    ├ part 0 ┤         a long one makes them late

A simulated step asks for one ring and would repeat it for each layer of each pass, so this is a
recurrence and not part of the events.
"""

from collections import Counter
from collections.abc import Sequence

from jaxpipe.topo import Cluster


def all_gather_s(
    cluster: Cluster,
    rings: Sequence[Sequence[int]],
    part_bytes: float,
    *,
    nic_efficiency: float,
) -> float:
    """Return the seconds until the slowest ring has brought every part to every device.

    All rings (of devices) run at once and share NICs and trunks. A reduce-scatter takes as long.

    >>> from jaxpipe import topo
    >>> pair = topo.load("homogeneous:hosts=2,delay_ms=500,bandwidth_gbps=8")
    >>> all_gather_s(pair, [(0, 1)], 1e9, nic_efficiency=1.0)
    1.5
    """
    host_of = cluster.host_of
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    # Rings that leave a host at the same time share its NIC, and those of a region its trunks.
    leaving = Counter(host_of[a] for a, b in hops if host_of[a] != host_of[b])
    regions, trunks = [device.region for device in cluster.devices], cluster.trunk_numbers
    across = Counter((regions[a], regions[b]) for a, b in hops)

    def hop_s(a: int, b: int) -> tuple[float, float]:
        rate = float(cluster.alone_bytes_per_s[a, b])
        if host_of[a] != host_of[b]:
            nic = nic_efficiency * cluster.hosts[host_of[a]].egress_bytes_per_s
            rate = min(rate, nic / leaving[host_of[a]])
        if (way := (regions[a], regions[b])) in trunks:
            rate = min(rate, cluster.trunks[trunks[way]].bytes_per_s / across[way])
        return float(cluster.latency_s[a, b]), part_bytes / rate

    return max(
        _ring_s([hop_s(a, b) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)])
        for ring in rings
    )


def _ring_s(hops: Sequence[tuple[float, float]]) -> float:
    """Return when the last part has passed its last hop; hops have a latency and wire seconds."""
    free_s = [0.0] * len(hops)
    arrived_s = [0.0] * len(hops)  # the part that each device sends next is there from then on
    for _ in range(len(hops) - 1):
        for index, (_, wire_s) in enumerate(hops):
            free_s[index] = max(free_s[index], arrived_s[index]) + wire_s
        # Hop i ends at device i + 1.
        behind = [free + latency_s for free, (latency_s, _) in zip(free_s, hops, strict=True)]
        arrived_s = [behind[-1], *behind[:-1]]
    return max(arrived_s)
