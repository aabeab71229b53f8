"""Description of an emulated network: hosts, their NICs, a link for each ordered pair, trunks.

In seconds, bytes per second and numbers of hosts; as JSON for the relay process.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf

from jaxpipe.topo.cluster import Cluster
from jaxpipe.topo.shaping import shaped_peers


class Tcp(StrEnum):
    """How TCP begins on an emulated link, and after the link was idle.

    ======= ======================================================================================
    steady  at the full rate: a window as large as the link holds, and no slow start after idling
    kernel  as Linux does: this machine's buffers, a window of ten segments of Ethernet at first,
            and with the default settings a window halved for each timeout of idleness
    ======= ======================================================================================
    """

    STEADY = "steady"
    KERNEL = "kernel"

    @property
    def mtu(self) -> int:
        """The bytes of a packet.

        Windows are counted in segments, so that of `kernel` is Ethernet's; the relay still handles
        few packets, since the kernel hands it up to 64 KiB of segments at once. Those of `steady`
        are as large as packets become.
        """
        return 60000 if self is Tcp.STEADY else 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host, the limits of its NIC in each direction (infinity: none), and what may go at once."""

    name: str
    egress_bytes_per_s: float = inf
    ingress_bytes_per_s: float = inf
    burst_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """The link from one host to another, both numbered, and the number of its trunk, if any."""

    source: int
    destination: int
    latency_s: float
    bytes_per_s: float
    trunk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """Hosts and links; packets are up to `jitter_s` early or late, and a fraction `loss` is lost.

    `trunks` are bandwidths that links share [bytes/s].

    Raises:
        ValueError: jitter or loss is out of range.
    """

    hosts: tuple[HostSpec, ...]
    links: tuple[LinkSpec, ...]
    trunks: tuple[float, ...] = ()
    jitter_s: float = 0.0
    loss: float = 0.0
    tcp: Tcp = Tcp.STEADY

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_s < inf:
            raise ValueError(f"`jitter` must be at least 0 ms, is {1e3 * self.jitter_s:g}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"`loss` must be a part of the packets below 1, is {self.loss:g}")


def network_spec(
    cluster: Cluster, *, jitter_s: float = 0.0, loss: float = 0.0, tcp: Tcp = Tcp.STEADY
) -> NetworkSpec:
    """Return the links between the hosts of a cluster, as `jaxpipe.topo.shaping` reads them.

    Raises:
        ValueError: a bandwidth between hosts has no limit, or jitter or loss is no such number.
    """
    number = {host.name: index for index, host in enumerate(cluster.hosts)}
    return NetworkSpec(
        hosts=tuple(
            HostSpec(
                name=host.name,
                egress_bytes_per_s=host.egress_bytes_per_s,
                ingress_bytes_per_s=host.ingress_bytes_per_s,
                burst_bytes=host.burst_bytes,
            )
            for host in cluster.hosts
        ),
        links=tuple(
            LinkSpec(
                source=index,
                destination=number[peer.host],
                latency_s=peer.latency_s,
                bytes_per_s=peer.bytes_per_s,
                trunk=peer.trunk,
            )
            for index, host in enumerate(cluster.hosts)
            for peer in shaped_peers(cluster, host.name)
        ),
        trunks=tuple(trunk.bytes_per_s for trunk in cluster.trunks),
        jitter_s=jitter_s,
        loss=loss,
        tcp=tcp,
    )


def to_json(spec: NetworkSpec) -> str:
    """Return the description on one line."""
    # Infinity becomes `Infinity`, which is no JSON; Python reads it back.
    return json.dumps(asdict(spec))


def from_json(text: str) -> NetworkSpec:
    """Return the description that `to_json` wrote.

    >>> spec = NetworkSpec(hosts=(HostSpec(name="a"),), links=())
    >>> from_json(to_json(spec)) == spec
    True
    """
    tree = json.loads(text)
    return NetworkSpec(
        hosts=tuple(HostSpec(**host) for host in tree["hosts"]),
        links=tuple(LinkSpec(**link) for link in tree["links"]),
        trunks=tuple(tree["trunks"]),
        jitter_s=tree["jitter_s"],
        loss=tree["loss"],
        tcp=Tcp(tree["tcp"]),
    )
