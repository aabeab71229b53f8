"""The links between devices of a cluster, joined by the NICs and trunks that they share."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from jaxpipe.network.event_queue import Clock
from jaxpipe.network.link import Link
from jaxpipe.network.message_costs import MessageCosts
from jaxpipe.network.nic import Nic, NicTraffic
from jaxpipe.topo import Cluster

Pair: TypeAlias = tuple[int, int]
"""Two devices of a cluster: source and destination."""


def open_links(
    clock: Clock,
    cluster: Cluster,
    pairs: Mapping[MessageCosts, Collection[Pair]],
    *,
    nic_efficiency: float,
) -> dict[MessageCosts, dict[Pair, Link]]:
    """Return, for each kind of message, a link for each pair of devices that it connects.

    Each kind has links of its own; all of them share the hosts' NICs, of whose bandwidth
    `nic_efficiency` can be used, and the trunks between regions.
    """
    rates = {
        (costs, pair): link_rate(cluster, costs, pair)
        for costs, joined in pairs.items()
        for pair in sorted(set(joined))
    }
    nics = _nics(clock, cluster, rates, nic_efficiency=nic_efficiency)
    links: dict[MessageCosts, dict[Pair, Link]] = defaultdict(dict)
    for (costs, pair), rate in rates.items():
        links[costs][pair] = Link(
            clock,
            costs if crosses_hosts(cluster, pair) else MessageCosts(num_buffers=costs.num_buffers),
            latency_s=float(cluster.latency_s[pair]),
            rtt_s=float(cluster.latency_s[pair] + cluster.latency_s[pair[::-1]]),
            bytes_per_s=rate,
            nics=nics.get((costs, pair), ()),
        )
    return dict(links)


def crosses_hosts(cluster: Cluster, pair: Pair) -> bool:
    """Return whether a pair of devices is on two hosts, so that its messages pass NICs."""
    return cluster.devices[pair[0]].host != cluster.devices[pair[1]].host


def link_rate(cluster: Cluster, costs: MessageCosts, pair: Pair) -> float:
    """Return the bytes/s of a link, apart from what it shares."""
    alone = float(cluster.alone_bytes_per_s[pair])
    return min(alone, costs.flow_bytes_per_s) if crosses_hosts(cluster, pair) else alone


Limit: TypeAlias = tuple[str, int, MessageCosts | None]
"""A direction, a host, and the kind of message if the limit is its own, None for the NIC.

Of a trunk: "trunk", its number, None.
"""


class SharedLimits:
    """The limits that messages between two hosts of a cluster share with others."""

    def __init__(self, cluster: Cluster) -> None:
        self._devices = cluster.devices
        self._host_of = cluster.host_of
        self._trunks = cluster.trunk_numbers

    def of(self, costs: MessageCosts, pair: Pair) -> list[Limit]:
        """Return the limits of a message of one kind between two devices."""
        source, destination = (self._host_of[device] for device in pair)
        ends = (("egress", source), ("ingress", destination))
        limits: list[Limit] = [(*end, kind) for end in ends for kind in (None, costs)]
        if self._trunks:
            a, b = (self._devices[device].region for device in pair)
            if (a, b) in self._trunks:
                limits.append(("trunk", self._trunks[a, b], None))
        return limits


def capacity(cluster: Cluster, limit: Limit, *, nic_efficiency: float) -> float:
    """Return the bytes/s of a shared limit."""
    direction, number, costs = limit
    if costs is not None:
        return costs.host_bytes_per_s
    if direction == "trunk":
        return cluster.trunks[number].bytes_per_s
    nic = cluster.hosts[number]
    limits = {"egress": nic.egress_bytes_per_s, "ingress": nic.ingress_bytes_per_s}
    return limits[direction] * nic_efficiency


def burst_bytes(cluster: Cluster, limit: Limit) -> float:
    """Return what may pass a shared limit at once, after a silence."""
    direction, number, costs = limit
    is_egress = direction == "egress" and costs is None
    return cluster.hosts[number].burst_bytes if is_egress else 0.0


def _nics(
    clock: Clock,
    cluster: Cluster,
    rates: Mapping[tuple[MessageCosts, Pair], float],
    *,
    nic_efficiency: float,
) -> dict[tuple[MessageCosts, Pair], tuple[Nic, ...]]:
    shared = SharedLimits(cluster)
    loads: dict[Limit, float] = defaultdict(float)
    passed: dict[tuple[MessageCosts, Pair], list[Limit]] = {}
    for (costs, pair), rate in rates.items():
        if crosses_hosts(cluster, pair):
            passed[costs, pair] = shared.of(costs, pair)
            for limit in passed[costs, pair]:
                loads[limit] += rate
    # A limit that its links cannot reach together is left out: sharing costs time to simulate.
    traffic = NicTraffic(clock)
    nics = {
        limit: Nic(rate, traffic, burst_bytes=burst_bytes(cluster, limit))
        for limit, load in loads.items()
        if (rate := capacity(cluster, limit, nic_efficiency=nic_efficiency)) < load
    }
    return {
        key: tuple(nics[limit] for limit in limits if limit in nics)
        for key, limits in passed.items()
    }
