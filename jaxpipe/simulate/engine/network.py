"""The network while it is used: the links between devices, and the NICs that they share."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from jaxpipe.simulate.engine.event_queue import EventQueue
from jaxpipe.simulate.engine.link import Link
from jaxpipe.simulate.engine.message_costs import MessageCosts
from jaxpipe.simulate.engine.nic import Nic
from topo import Cluster

Pair: TypeAlias = tuple[int, int]
"""Two devices of a cluster: source and destination."""


def open_links(
    queue: EventQueue,
    cluster: Cluster,
    pairs: Mapping[MessageCosts, Collection[Pair]],
    *,
    nic_efficiency: float,
) -> dict[MessageCosts, dict[Pair, Link]]:
    """Return, for each wire, a link for each pair of devices that it joins.

    Each wire has links of its own; all of them share the hosts' NICs, of whose bandwidth
    `nic_efficiency` can be used. A limit that its links together cannot reach is left out, since
    sharing costs time to simulate.
    """
    rates = {
        (wire, pair): _rate(cluster, wire, pair)
        for wire, joined in pairs.items()
        for pair in sorted(set(joined))
    }
    nics = _nics(cluster, rates, nic_efficiency=nic_efficiency)
    links: dict[MessageCosts, dict[Pair, Link]] = defaultdict(dict)
    for (wire, pair), rate in rates.items():
        links[wire][pair] = Link(
            queue,
            wire if _crosses(cluster, pair) else MessageCosts(num_buffers=wire.num_buffers),
            latency_s=float(cluster.latency_s[pair]),
            bytes_per_s=rate,
            nics=nics.get((wire, pair), ()),
        )
    return dict(links)


def _crosses(cluster: Cluster, pair: Pair) -> bool:
    return cluster.devices[pair[0]].host != cluster.devices[pair[1]].host


def _rate(cluster: Cluster, wire: MessageCosts, pair: Pair) -> float:
    alone = float(cluster.alone_bytes_per_s[pair])
    return min(alone, wire.flow_bytes_per_s) if _crosses(cluster, pair) else alone


_Limit: TypeAlias = tuple[str, int, MessageCosts | None]
"""A direction, a host, and the wire if it is the wire's limit rather than the NIC's."""


def _nics(
    cluster: Cluster, rates: Mapping[tuple[MessageCosts, Pair], float], *, nic_efficiency: float
) -> dict[tuple[MessageCosts, Pair], tuple[Nic, ...]]:
    host_of = cluster.host_of
    loads: dict[_Limit, float] = defaultdict(float)
    passed: dict[tuple[MessageCosts, Pair], list[_Limit]] = {}
    for (wire, pair), rate in rates.items():
        if _crosses(cluster, pair):
            source, destination = (host_of[device] for device in pair)
            ends = (("egress", source), ("ingress", destination))
            passed[wire, pair] = [(*end, by) for end in ends for by in (None, wire)]
            for limit in passed[wire, pair]:
                loads[limit] += rate
    nics = {
        limit: Nic(capacity)
        for limit, load in loads.items()
        if (capacity := _capacity(cluster, limit, nic_efficiency=nic_efficiency)) < load
    }
    return {
        key: tuple(nics[limit] for limit in limits if limit in nics)
        for key, limits in passed.items()
    }


def _capacity(cluster: Cluster, limit: _Limit, *, nic_efficiency: float) -> float:
    direction, host, wire = limit
    if wire is not None:
        return wire.host_bytes_per_s
    nic = cluster.hosts[host]
    limits = {"egress": nic.egress_bytes_per_s, "ingress": nic.ingress_bytes_per_s}
    return limits[direction] * nic_efficiency
