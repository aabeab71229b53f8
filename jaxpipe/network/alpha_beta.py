"""Alpha-beta: what messages cost in closed form, without events.

A message takes the latency of its link (alpha) and its bytes over the bandwidth (beta). Of a port,
a message takes as much time as its bytes would need if it had the port alone; what the messages of
a port take adds up. So links that are slower than the ports at their ends carry messages side by
side, as far as the ports allow; a port as slow as its links handles one message after the other.

Two bandwidths of a cluster serve two questions (see `jaxpipe.topo.cluster`): `lone_message_s` takes
that of an idle network, as `Link` does, and agrees with it; `links_between` takes that of a pair
while all others communicate as well, since a closed form cannot see which of them do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from jaxpipe.network.message_costs import MessageCosts
from jaxpipe.network.open_links import (
    Pair,
    SharedLimits,
    burst_bytes,
    capacity,
    crosses_hosts,
    link_rate,
)
from jaxpipe.topo import Cluster


def lone_message_s(
    cluster: Cluster,
    pair: Pair,
    *,
    num_bytes: float,
    costs: MessageCosts | None = None,
    nic_efficiency: float = 1.0,
) -> float:
    """Return the seconds of a message that has the network for itself, as `Link` times it.

    >>> from jaxpipe import topo
    >>> round(lone_message_s(topo.load("two-region"), (0, 2), num_bytes=140e6), 6)
    1.011
    """
    costs = costs or MessageCosts()
    rate = link_rate(cluster, costs, pair)
    if crosses_hosts(cluster, pair):
        limits = SharedLimits(cluster).of(costs, pair)
        shared = [
            (capacity(cluster, limit, nic_efficiency=nic_efficiency), burst_bytes(cluster, limit))
            for limit in limits
        ]
        return float(cluster.latency_s[pair]) + costs.overhead_s + _sent_s(num_bytes, rate, shared)
    return float(cluster.latency_s[pair]) + num_bytes / rate


def _sent_s(num_bytes: float, rate: float, shared: Sequence[tuple[float, float]]) -> float:
    """Return the seconds in which a message leaves: of a token bucket, those without its burst."""
    # A full bucket of `burst` bytes has let through `burst` + rate x time after a time.
    rate = min(rate, *(limit for limit, burst in shared if not burst))
    buckets = ((num_bytes - burst) / limit for limit, burst in shared if burst)
    return max(num_bytes / rate, *buckets, 0.0)


def _as_links() -> np.ndarray:
    # Of no size: stands for the matrix of the links, to which no default can refer.
    return np.empty((0, 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Alpha and beta of all pairs of some members: `latency_s[a, b]`, `seconds_per_byte[a, b]`.

    Members are numbered from 0. A byte takes `port_s_per_byte[a, b]` of the port out of `a` and of
    the port into `b`; by default as long as of the link.
    """

    latency_s: np.ndarray
    seconds_per_byte: np.ndarray
    port_s_per_byte: np.ndarray = field(default_factory=_as_links)

    def __post_init__(self) -> None:
        if not self.port_s_per_byte.size:
            # A frozen dataclass can only be set like this.
            object.__setattr__(self, "port_s_per_byte", self.seconds_per_byte)

    def __len__(self) -> int:
        return len(self.latency_s)

    def message_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds from the start of a message to the arrival of its last byte."""
        wire_s = num_bytes * self.seconds_per_byte[source, destination]
        return float(self.latency_s[source, destination] + wire_s)

    def wire_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds for which a message occupies the link."""
        return float(num_bytes * self.seconds_per_byte[source, destination])

    def port_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds that a message takes of the ports at both of its ends."""
        return float(num_bytes * self.port_s_per_byte[source, destination])

    def of(self, members: Sequence[int]) -> "Links":
        """Return the links between some members, numbered in this order."""
        both = np.ix_(members, members)
        return Links(
            latency_s=self.latency_s[both],
            seconds_per_byte=self.seconds_per_byte[both],
            port_s_per_byte=self.port_s_per_byte[both],
        )


def links_between(cluster: Cluster, devices: tuple[int, ...]) -> Links:
    """Return the links between some devices, numbered in this order.

    Of the NIC of its host, a device has the same part as each other of the host: all of them
    communicate at once. Where the cluster file states no NIC, it is taken to be as fast as the
    fastest link of the host: plans should not count on what nobody has stated. (Simulations take
    such links as they are, all side by side.) What a token bucket lets through after a silence does
    not count: all communicate. Inside a host messages go side by side. Of a trunk
    between two regions, a link has the part of one device of the smaller region, all of which send.

    >>> from jaxpipe import topo
    >>> links = links_between(topo.load("two-region"), (0, 2))
    >>> round(links.message_s(0, 1, num_bytes=140e6), 6)
    1.011
    """
    both = np.ix_(devices, devices)
    seconds_per_byte = 1 / cluster.bandwidth_bytes_per_s[both]
    if cluster.trunks:
        seconds_per_byte = np.maximum(seconds_per_byte, 1 / _trunk_parts(cluster)[both])
    hosts, out, into = _ports(cluster)
    hosts_of = hosts[list(devices)]
    ends = np.minimum(out[list(devices)][:, None], into[list(devices)][None, :])
    port_s_per_byte = np.where(hosts_of[:, None] == hosts_of[None, :], 0.0, 1 / ends)
    return Links(
        latency_s=cluster.latency_s[both],
        seconds_per_byte=seconds_per_byte,
        # A link that is faster than a device's part of the NIC may have more of it for itself.
        port_s_per_byte=np.minimum(port_s_per_byte, seconds_per_byte),
    )


@lru_cache(maxsize=4)
def _trunk_parts(cluster: Cluster) -> np.ndarray:
    """Return the part of a trunk that the link of each pair of devices has [bytes/s]."""
    region_of = np.array([device.region for device in cluster.devices])
    parts = np.full((len(cluster), len(cluster)), np.inf)
    for trunk in cluster.trunks:
        source, destination = region_of == trunk.source, region_of == trunk.destination
        num_senders = max(1, min(source.sum(), destination.sum()))
        parts[np.ix_(source, destination)] = trunk.bytes_per_s / num_senders
    return parts


@lru_cache(maxsize=4)  # asked for each of thousands of sync trees
def _ports(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the host of each device, and its part of the NIC there, out and in [bytes/s]."""
    host_of = np.array(cluster.host_of)
    out, into = np.empty(len(cluster)), np.empty(len(cluster))
    rates = cluster.alone_bytes_per_s
    for number, host in enumerate(cluster.hosts):
        mine = host_of == number
        # Host by host: a matrix of all pairs may have a hundred million of them.
        crossing = np.ix_(mine, ~mine)
        for part, stated, links in (
            (out, host.egress_bytes_per_s, rates),
            (into, host.ingress_bytes_per_s, rates.T),
        ):
            fastest = stated if np.isfinite(stated) else links[crossing].max(initial=0.0)
            # A lone host sends nothing: no limit.
            part[mine] = (fastest or np.inf) / mine.sum()
    return host_of, out, into


def uniform_links(num_members: int, *, latency_s: float, bandwidth_bytes_per_s: float) -> Links:
    """Return identical links between all members."""
    apart = 1.0 - np.eye(num_members)
    return Links(latency_s=apart * latency_s, seconds_per_byte=apart / bandwidth_bytes_per_s)


def served_s(messages: Iterable[tuple[float, float, float]], *, start_s: float = 0.0) -> float:
    """Return when a port has received all messages.

    Of each message these are the arrival of its first byte, and the seconds that it takes of its
    link and of the port. Sending is receiving with time reversed, so it takes as long.

    >>> served_s([(5.0, 1.0, 1.0), (1.0, 2.0, 2.0), (2.0, 1.0, 1.0)])
    6.0
    >>> served_s([(0.0, 4.0, 1.0), (0.0, 4.0, 1.0)])  # side by side
    4.0
    """
    free_s = end_s = start_s
    # First come, first served: no other order ends earlier.
    for first_s, wire_s, port_s in sorted(messages):
        free_s = max(free_s, first_s) + port_s
        end_s = max(end_s, free_s, max(start_s, first_s) + wire_s)
    return end_s
