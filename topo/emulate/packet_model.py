"""Packet model of the relay: when a packet that enters the emulated network leaves it.

::

    host a ─ NIC of a ──── link a→b ─── trunk ──── latency ── NIC of b ─ host b
             egress rate   rate, limit  rate       ± jitter   ingress rate

Each of the rates, that of the trunk only where two regions have one, is a server that sends one
packet after the other. A packet waits until the server is free and occupies it for its bytes over
the rate; the next server may begin while the packet still arrives, so that a packet alone takes its
bytes over the lowest rate, plus the latency: `s/bandwidth + latency`, as in the cluster's tables. A
link holds packets in order, jitter or not.

What waits is bounded. A packet that finds more than `limit_bytes` before a server on its path is
dropped (drop-tail), and TCP slows down. The limit is what one round trip of the link holds and
16 MiB more: a TCP connection that has filled it still fills the link with half a window.

`jaxpipe.network` models the same links for whole messages; on a lone message both agree. They stay
two because the relay passes real packets: it serves them first come, first served, and leaves to
the kernel's TCP what `jaxpipe.network.nic` has to assume, that flows divide a NIC evenly. It also
drops packets, has no events to schedule, and runs as root without importing jaxpipe.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from jaxpipe.topo.emulate.network_spec import NetworkSpec

Pair = tuple[int, int]
QUEUE_BYTES = 16 * 2**20


@dataclass(slots=True, kw_only=True)
class Server:
    """A server that sends packets one after the other at a rate, free again at `free_s`.

    After a silence `burst_bytes` leave at once: it is a token bucket.

    >>> server = Server(bytes_per_s=800.0, limit_bytes=500)
    >>> server.send(num_bytes=100, now_s=1.0), server.send(num_bytes=100, now_s=1.0)
    (1.125, 1.25)
    >>> server.waiting_bytes(now_s=1.0)
    200.0
    """

    bytes_per_s: float
    limit_bytes: float
    free_s: float = 0.0
    burst_bytes: float = 0.0

    def waiting_bytes(self, *, now_s: float) -> float:
        """Return the bytes that wait, including the rest of the packet that is being sent."""
        return (self.free_s - now_s) * self.bytes_per_s if self.free_s > now_s else 0.0

    def send(self, *, num_bytes: int, now_s: float, after_s: float = 0.0) -> float:
        """Occupy the server, and return when the packet has left, not before `after_s`."""
        if self.bytes_per_s == inf:
            return max(now_s, after_s)
        # A server that is free earlier than now has tokens: of a bucket's bytes at most.
        start_s = max(now_s - self.burst_bytes / self.bytes_per_s, self.free_s)
        self.free_s = max(after_s, start_s + num_bytes / self.bytes_per_s)
        return max(now_s, self.free_s) if self.burst_bytes else self.free_s


@dataclass(slots=True, kw_only=True)
class PacketLink:
    """The path from one host to another: its rate, its trunk, its latency, and its traffic."""

    server: Server
    latency_s: float
    trunk: Server | None = None
    last_s: float = 0.0
    sent_bytes: int = 0
    dropped_packets: int = 0


@dataclass(slots=True, kw_only=True)
class PacketNetwork:
    """All paths between hosts, and their NICs; times are seconds of any monotonic clock."""

    wires: Mapping[Pair, PacketLink]
    egress: Sequence[Server]
    ingress: Sequence[Server]
    jitter_s: float = 0.0
    loss: float = 0.0
    # Seeded: two emulations of one network lose the same packets of the same traffic.
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def enter(self, pair: Pair, *, num_bytes: int, now_s: float) -> float | None:
        """Return when a packet reaches the NIC of its destination; None if it is dropped."""
        wire, nic = self.wires[pair], self.egress[pair[0]]
        servers = (nic, wire.server) if wire.trunk is None else (nic, wire.server, wire.trunk)
        is_full = any(server.waiting_bytes(now_s=now_s) > server.limit_bytes for server in servers)
        if is_full or (self.loss and self.chance.random() < self.loss):
            wire.dropped_packets += 1
            return None
        # Counted where it enters: a packet that the receiving NIC drops has crossed the link.
        wire.sent_bytes += num_bytes
        out_s = nic.send(num_bytes=num_bytes, now_s=now_s)
        # `after_s`: the link cannot end before the NIC has.
        out_s = wire.server.send(num_bytes=num_bytes, now_s=now_s, after_s=out_s)
        if wire.trunk is not None:
            out_s = wire.trunk.send(num_bytes=num_bytes, now_s=now_s, after_s=out_s)
        late_s = self.chance.uniform(-self.jitter_s, self.jitter_s) if self.jitter_s else 0.0
        # Never before the packet in front: jitter must not reorder, which TCP takes for loss.
        wire.last_s = max(wire.last_s, out_s + max(0.0, wire.latency_s + late_s))
        return wire.last_s

    def arrive(self, pair: Pair, *, num_bytes: int, now_s: float) -> float | None:
        """Return when a packet that has reached its destination's NIC is received; None if dropped.

        The NIC receives it while the link still sends it, so its time begins with the first byte.
        """
        nic = self.ingress[pair[1]]
        if nic.bytes_per_s == inf:
            return now_s
        wire = self.wires[pair]
        if nic.waiting_bytes(now_s=now_s) > nic.limit_bytes:
            wire.dropped_packets += 1
            return None
        # Its first byte arrived that much earlier.
        began_s = now_s - num_bytes / wire.server.bytes_per_s
        return nic.send(num_bytes=num_bytes, now_s=began_s, after_s=now_s)


def network_of(spec: NetworkSpec) -> PacketNetwork:
    """Return the idle network of a description."""
    trunks = [_trunk(spec, number) for number in range(len(spec.trunks))]
    wires = {
        (link.source, link.destination): PacketLink(
            server=_server(link.bytes_per_s, link.latency_s),
            latency_s=link.latency_s,
            trunk=None if link.trunk is None else trunks[link.trunk],
        )
        for link in spec.links
    }
    return PacketNetwork(
        wires=wires,
        egress=[_nic(host.egress_bytes_per_s, host.burst_bytes) for host in spec.hosts],
        ingress=[_nic(host.ingress_bytes_per_s) for host in spec.hosts],
        jitter_s=spec.jitter_s,
        loss=spec.loss,
    )


def _server(bytes_per_s: float, latency_s: float) -> Server:
    round_trip_bytes = 2 * latency_s * bytes_per_s
    return Server(bytes_per_s=bytes_per_s, limit_bytes=round_trip_bytes + QUEUE_BYTES)


def _trunk(spec: NetworkSpec, number: int) -> Server:
    latencies_s = [link.latency_s for link in spec.links if link.trunk == number]
    return _server(spec.trunks[number], max(latencies_s, default=0.0))


def _nic(bytes_per_s: float, burst_bytes: float = 0.0) -> Server:
    return Server(bytes_per_s=bytes_per_s, limit_bytes=2 * QUEUE_BYTES, burst_bytes=burst_bytes)
