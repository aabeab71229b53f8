"""Alpha-beta: what messages cost in closed form, without events.

A message takes the latency of its link (alpha) and its bytes over the bandwidth (beta). A port
handles one message after the other, while others are still in flight.

Two bandwidths of a cluster serve two questions (see `jaxpipe.topo.cluster`): `lone_message_s` takes
that of an idle network, as `Link` does, and agrees with it; `links_between` takes that of a pair
while all others communicate as well, since a closed form cannot see which of them do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxpipe.network.message_costs import MessageCosts
from jaxpipe.network.open_links import Pair, capacity, crosses_hosts, link_rate, shared_limits
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
    rate, overhead_s = link_rate(cluster, costs, pair), 0.0
    if crosses_hosts(cluster, pair):
        limits = shared_limits(cluster.host_of, costs, pair)
        shared = (capacity(cluster, limit, nic_efficiency=nic_efficiency) for limit in limits)
        rate, overhead_s = min(rate, *shared), costs.overhead_s
    return float(cluster.latency_s[pair]) + (overhead_s + num_bytes / rate)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Alpha and beta of all pairs of some members: `latency_s[a, b]`, `seconds_per_byte[a, b]`.

    Members are numbered from 0; no pair slows down another.
    """

    latency_s: np.ndarray
    seconds_per_byte: np.ndarray

    def __len__(self) -> int:
        return len(self.latency_s)

    def message_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds from the start of a message to the arrival of its last byte."""
        wire_s = num_bytes * self.seconds_per_byte[source, destination]
        return float(self.latency_s[source, destination] + wire_s)

    def wire_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds for which a message occupies the link."""
        return float(num_bytes * self.seconds_per_byte[source, destination])


def links_between(cluster: Cluster, devices: tuple[int, ...]) -> Links:
    """Return the links between some devices, numbered in this order.

    >>> from jaxpipe import topo
    >>> links = links_between(topo.load("two-region"), (0, 2))
    >>> round(links.message_s(0, 1, num_bytes=140e6), 6)
    1.011
    """
    both = np.ix_(devices, devices)
    return Links(
        latency_s=cluster.latency_s[both],
        seconds_per_byte=1 / cluster.bandwidth_bytes_per_s[both],
    )


def uniform_links(num_members: int, *, latency_s: float, bandwidth_bytes_per_s: float) -> Links:
    """Return identical links between all members."""
    apart = 1.0 - np.eye(num_members)
    return Links(latency_s=apart * latency_s, seconds_per_byte=apart / bandwidth_bytes_per_s)


def served_s(messages: Iterable[tuple[float, float]], *, start_s: float = 0.0) -> float:
    """Return when a port has received all messages: pairs of earliest arrival and wire seconds.

    Sending is receiving with time reversed, so it takes as long.

    >>> served_s([(5.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
    6.0
    """
    end_s = start_s
    # First come, first served: no other order ends earlier.
    for latency_s, wire_s in sorted(messages):
        end_s = max(end_s, float(latency_s)) + wire_s
    return end_s
