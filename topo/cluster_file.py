"""What a cluster file may say: its tables, checked field by field."""

from dataclasses import dataclass, field
from math import inf

import msgspec

from topo.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Like hosts: `count` in each region, of `devices` each, behind one NIC each.

    `nic_gbps` limits both directions of the NIC, `egress_gbps` and `ingress_gbps` one of them.
    `name` is for one host alone; others are called by their region and a number.
    """

    region: str | tuple[str, ...]
    name: str | None = None
    count: int = 1
    devices: int = 1
    gpu: str | None = None
    effective_tflops: float | None = None
    nic_gbps: float = inf
    egress_gbps: float | None = None
    ingress_gbps: float | None = None

    def __post_init__(self) -> None:
        for name in ("count", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, is {getattr(self, name)}")
        if self.name is not None and (self.count > 1 or len(self.regions) != 1):
            raise ValueError(f"`name` is for one host; {self.name!r} stands for more: leave it out")

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that have such hosts."""
        return (self.region,) if isinstance(self.region, str) else self.region


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A latency one way, and the bandwidth of a pair: its share, and what it gets alone."""

    latency_ms: float
    bandwidth_gbps: float
    alone_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink(Speed):
    """A speed between two regions, or inside one: both directions, or one."""

    between: tuple[str, str] | None = None
    source: str | None = None
    destination: str | None = None

    def directions(self) -> tuple[tuple[str, str], ...]:
        """Return the ordered pairs of regions."""
        if self.between is not None:
            a, b = self.between
            return ((a, b), (b, a))
        if self.source is None or self.destination is None:
            raise ValueError("a link in `links` has neither `between` nor `source` + `destination`")
        return ((self.source, self.destination),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Matrices over all devices, in the file or in a .csv or .npy file beside it."""

    latency_s: str | tuple[tuple[float, ...], ...]
    bandwidth_bytes_per_s: str | tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file: hosts, and their links by region, by a table of regions, or pair by pair."""

    name: str
    hosts: tuple[HostGroup, ...]
    links: tuple[RegionLink, ...] = ()
    link_table: str | None = None
    inside_region: Speed | None = None
    inside_host: Speed = field(default_factory=lambda: Speed(latency_ms=0, bandwidth_gbps=100))
    pairs: Pairs | None = None

    def __post_init__(self) -> None:
        by_region = bool(self.links or self.link_table or self.inside_region)
        if self.pairs is not None and by_region:
            raise ValueError("`pairs` tells all links: leave out `links`, `link_table` and so on")


def parse(file: dict[str, Value]) -> ClusterFile:
    """Return the file, its fields checked.

    Raises:
        ValueError: a field is missing, unknown, or not what it should be.
    """
    unknown = sorted(set(file) - set(ClusterFile.__dataclass_fields__))
    if unknown:
        choices = ", ".join(ClusterFile.__dataclass_fields__)
        raise ValueError(f"there is no field `{unknown[0]}`: give {choices}")
    return msgspec.convert(file, ClusterFile)
