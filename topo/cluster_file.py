"""What a cluster file may say: its tables, checked field by field."""

from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeAlias

import msgspec

from topo.parameters import Value

MAX_DEVICES = 2**13
"""Of more, the matrices of links take gigabytes each."""

Rows: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Like hosts: `count` in each region, of `devices` each, behind one NIC each.

    `nic_gbps` limits both directions of the NIC, `egress_gbps` and `ingress_gbps` one of them.
    `name` is for one host alone; others are called by their region and a number, unless they are
    named by an MPI `hostfile`, whose slots are devices, or by a `slurm_topology`, whose leaf
    switches are regions. `nvidia_topology` is what `nvidia-smi topo -m` prints on such a host.
    """

    region: str | tuple[str, ...] = "here"
    name: str | None = None
    count: int = 1
    devices: int = 1
    hostfile: str | None = None
    slurm_topology: str | None = None
    nvidia_topology: str | None = None
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
        if self.hostfile or self.slurm_topology:
            self._check_listed()

    def _check_listed(self) -> None:
        """Hosts that a file lists are not counted and named here as well."""
        if self.name is not None or self.count > 1 or len(self.regions) != 1:
            raise ValueError(
                "`hostfile` and `slurm_topology` list the hosts: leave out `name` and `count`, and "
                "give one `region`"
            )
        if self.hostfile and self.devices > 1:
            raise ValueError("the slots in `hostfile` are the devices: leave out `devices`")

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

    def __post_init__(self) -> None:
        if not 0 <= self.latency_ms < inf:
            raise ValueError(f"`latency_ms` must be from 0 to below infinity, is {self.latency_ms}")
        if not self.bandwidth_gbps > 0:
            raise ValueError(f"`bandwidth_gbps` must be above 0, is {self.bandwidth_gbps}")
        if self.alone_gbps is not None and not self.alone_gbps >= self.bandwidth_gbps:
            raise ValueError(
                f"`alone_gbps` must be at least `bandwidth_gbps` = {self.bandwidth_gbps}, is "
                f"{self.alone_gbps}"
            )


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

    latency_s: str | Rows
    bandwidth_bytes_per_s: str | Rows
    alone_bytes_per_s: str | Rows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How the pairs were measured, and how far the middle half of the samples spreads."""

    small_bytes: int
    small_repeats: int
    large_bytes: int
    large_repeats: int
    latency_spread_s: Rows
    bandwidth_spread_bytes_per_s: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file: hosts, and their links by region, by a table of regions, or pair by pair.

    There are `MAX_DEVICES` at most, since links are matrices. What is nearer wins: `links` over
    `link_table`, over `inside_region` and `across_regions`.
    """

    name: str
    hosts: tuple[HostGroup, ...]
    links: tuple[RegionLink, ...] = ()
    link_table: str | None = None
    inside_region: Speed | None = None
    across_regions: Speed | None = None
    inside_host: Speed = field(default_factory=lambda: Speed(latency_ms=0, bandwidth_gbps=100))
    pairs: Pairs | None = None
    measured: Measured | None = None

    def __post_init__(self) -> None:
        by_region = bool(self.links or self.link_table or self.inside_region)
        if self.pairs is not None and by_region:
            raise ValueError("`pairs` tells all links: leave out `links`, `link_table` and so on")
        num_devices = sum(len(g.regions) * g.count * g.devices for g in self.hosts)
        if num_devices > MAX_DEVICES:
            raise ValueError(
                f"a cluster has at most {MAX_DEVICES:,} devices, `hosts` has {num_devices:,}: "
                "lower `count` or `devices`"
            )


def parse(file: dict[str, Value]) -> ClusterFile:
    """Return the file, its fields checked.

    Raises:
        ValueError: a field is missing, unknown, or not what it should be.
    """
    _refuse_unknown(file, ClusterFile, "")
    parts = {"hosts": HostGroup, "links": RegionLink, "pairs": Pairs, "measured": Measured}
    parts |= dict.fromkeys(("inside_region", "across_regions", "inside_host"), Speed)
    for name, kind in parts.items():
        part = file.get(name)
        for each in part if isinstance(part, list | tuple) else [part]:
            _refuse_unknown(each, kind, f"{name}.")
    return msgspec.convert(file, ClusterFile)


def _refuse_unknown(part: Any, kind: Any, prefix: str) -> None:
    fields = list(kind.__dataclass_fields__)
    unknown = sorted(set(part) - set(fields)) if isinstance(part, dict) else []
    if unknown:
        choices = ", ".join(fields)
        raise ValueError(f"there is no field `{prefix}{unknown[0]}`: give {choices}")
