"""Alpha-beta links: a message takes the latency of its link plus its bytes over the bandwidth.

A port transfers one message at a time, while the latencies of others pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The links between some members: `latency_s[a, b]` and `seconds_per_byte[a, b]`.

    Members are numbered from 0; links do not slow each other down.
    """

    latency_s: np.ndarray
    seconds_per_byte: np.ndarray

    def __len__(self) -> int:
        return len(self.latency_s)

    def message_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds from the start of a message to its last byte."""
        wire_s = num_bytes * self.seconds_per_byte[source, destination]
        return float(self.latency_s[source, destination] + wire_s)

    def wire_s(self, source: int, destination: int, *, num_bytes: float) -> float:
        """Return the seconds for which a message occupies the link."""
        return float(num_bytes * self.seconds_per_byte[source, destination])


def links_between(cluster: Cluster, devices: tuple[int, ...]) -> Links:
    """Return the links between some devices, numbered in this order.

    >>> import topo
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
    """Return equal links between all members."""
    apart = 1.0 - np.eye(num_members)
    return Links(latency_s=apart * latency_s, seconds_per_byte=apart / bandwidth_bytes_per_s)


def served_s(messages: Iterable[tuple[float, float]], *, start_s: float = 0.0) -> float:
    """Return when a port has received all messages, pairs of first arrival and wire seconds.

    It takes earlier arrivals first. Sending is receiving with time reversed, and takes as long.

    >>> served_s([(5.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
    6.0
    """
    end_s = start_s
    for latency_s, wire_s in sorted(messages):
        end_s = max(end_s, float(latency_s)) + wire_s
    return end_s
