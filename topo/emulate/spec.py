"""What is to be emulated, free of devices: hosts, their NICs, and a link for each ordered pair.

Seconds, bytes per second, and whole numbers for hosts; JSON, so that a process can hand it to one
that is started for it.
"""

import json
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite

from topo.cluster import Cluster, Host
from topo.shaping import shaped_peers


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host, and what all that leaves or enters it shares (no limit: infinity)."""

    name: str
    egress_bytes_per_s: float = inf
    ingress_bytes_per_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """The link from one host to another, both numbered."""

    source: int
    destination: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """Hosts and links; each packet is up to `jitter_s` earlier or later, `loss` of them get lost.

    Raises:
        ValueError: jitter or loss is no such number.
    """

    hosts: tuple[HostSpec, ...]
    links: tuple[LinkSpec, ...]
    jitter_s: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_s < inf:
            raise ValueError(f"`jitter` must be at least 0 ms, is {1e3 * self.jitter_s:g}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"`loss` must be a part of the packets below 1, is {self.loss:g}")


def scaled(cluster: Cluster, *, scale: float) -> Cluster:
    """Return the cluster with latencies and seconds per byte `scale` times as long.

    >>> import topo
    >>> link = scaled(topo.load("two-region"), scale=2.0).link(0, 2)
    >>> link.latency_s, link.bandwidth_bytes_per_s
    (0.022, 70000000.0)

    Raises:
        ValueError: `scale` is not above 0.
    """
    if not (scale > 0 and isfinite(scale)):
        raise ValueError(f"`scale` must be above 0, is {scale:g}")
    return replace(
        cluster,
        latency_s=cluster.latency_s * scale,
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s / scale,
        alone_bytes_per_s=cluster.alone_bytes_per_s / scale,
        hosts=tuple(_scaled_host(host, scale) for host in cluster.hosts),
    )


def _scaled_host(host: Host, scale: float) -> Host:
    return replace(
        host,
        egress_bytes_per_s=host.egress_bytes_per_s / scale,
        ingress_bytes_per_s=host.ingress_bytes_per_s / scale,
    )


def network_spec(cluster: Cluster, *, jitter_s: float = 0.0, loss: float = 0.0) -> NetworkSpec:
    """Return the links between the hosts of a cluster, as `topo.shaping` reads them.

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
            )
            for host in cluster.hosts
        ),
        links=tuple(
            LinkSpec(
                source=index,
                destination=number[peer.host],
                latency_s=peer.latency_s,
                bytes_per_s=peer.bytes_per_s,
            )
            for index, host in enumerate(cluster.hosts)
            for peer in shaped_peers(cluster, host.name)
        ),
        jitter_s=jitter_s,
        loss=loss,
    )


def to_json(spec: NetworkSpec) -> str:
    """Return the description on one line."""
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
        jitter_s=tree["jitter_s"],
        loss=tree["loss"],
    )
