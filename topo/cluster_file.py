"""What a cluster file may say: its tables, checked field by field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from jaxpipe.topo.names import check_host, check_name
from jaxpipe.topo.parameters import Value
from jaxpipe.topo.plain_types import in_plain_words

MAX_DEVICES = 2**14
"""Of more, the matrices of links take gigabytes each."""

Rows: TypeAlias = tuple[tuple[float, ...], ...]

_SPEED, _RATE, _PRICE = (0.0, 1e6), (1e-9, 1e9), (0.0, 1e6)
_SPEEDS = ("gpu", "tflops", "effective_tflops")
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "memory_gib": (2.0**-10, 2.0**20),
        "tflops": _SPEED,
        "effective_tflops": _SPEED,
        "relative_speed": (1e-3, 1e3),
        "watts": _SPEED,
        "dollars_per_hour": _PRICE,
        "egress_dollars_per_gb": _PRICE,
        "nic_gbps": _RATE,
        "egress_gbps": _RATE,
        "burst_mib": (0.0, 4095.0),
        "ingress_gbps": _RATE,
        "bandwidth_gbps": _RATE,
        "alone_gbps": _RATE,
        "capacity_gbps": _RATE,
        "latency_ms": (0.0, 1e6),
        "restart_kb": (1e-3, 1e9),
    }
)
"""The least and the largest number of each field that has a unit: of what exists, with margins.

1e-9 Gbit/s is a byte a second, 1e9 Gbit/s a link that takes no time. Speeds and powers are above
0. A NIC may be `inf`, its default: it limits nothing.
"""
_ABOVE_0 = frozenset(("tflops", "effective_tflops", "watts"))
_UNLIMITED = frozenset(("nic_gbps", "egress_gbps", "ingress_gbps"))


def check_ranges(section: Any) -> None:
    """Check the numbers of a table of a cluster file, all that have a range.

    Raises:
        ValueError: one is not in it; the message names the field.
    """
    for name in section.__dataclass_fields__:
        value = getattr(section, name)
        if name not in RANGES or value is None or (value == inf and name in _UNLIMITED):
            continue
        least, most = RANGES[name]
        # Chained, so that nan is refused as well.
        if not least <= value <= most or (value == 0 and name in _ABOVE_0):
            words = "above 0 and" if name in _ABOVE_0 else f"from {least:g} to"
            at_most = f"at most {most:g}" if name in _ABOVE_0 else f"{most:g}"
            raise ValueError(f"`{name}` must be {words} {at_most}, is {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """A group of equal hosts: `count` in each region, `devices` in each host, one NIC per host."""

    region: str | tuple[str, ...] = "here"
    """Region of the hosts, or a list of regions with `count` hosts in each."""
    name: str | None = None
    """Name of a single host. Default: the region and a number, such as `ohio-0`."""
    count: int = 1
    """Hosts in each region."""
    devices: int = 1
    """Devices in each host."""
    hostfile: str | None = None
    """MPI hostfile that lists the hosts; its slots are the devices."""
    slurm_topology: str | None = None
    """SLURM `topology.conf` that lists the hosts; its leaf switches are the regions."""
    nvidia_topology: str | None = None
    """Output of `nvidia-smi topo -m` on such a host: the links between its GPUs."""
    gpu: str | None = None
    """GPU model, a row of `topo/data/gpus.csv`: gives peak speed and memory. Any other name, if
    `memory_gib` and `tflops` are given."""
    memory_gib: float | None = None
    """Memory of a device [GiB]. Default: that of `gpu`."""
    tflops: float | None = None
    """Peak of a device's matrix products, in the format in which runs compute them [TFLOP/s].
    Default: that of `gpu` in each format."""
    effective_tflops: float | None = None
    """Speed that a device reaches in training, if it was measured [TFLOP/s]."""
    relative_speed: float = 1.0
    """Speed of a device as a multiple of those that state none: of a core of the machine that makes
    the plan, or of `paced.tflops`."""
    dollars_per_hour: float | None = None
    """Price of a device [dollars per hour]. Default: unknown."""
    egress_dollars_per_gb: float | None = None
    """Price of 1e9 bytes that leave the region [dollars]. Default: unknown."""
    watts: float | None = None
    """Power that a device draws [W]. Default: the thermal design power of `gpu`."""
    nic_gbps: float = inf
    """Bandwidth of the NIC in each direction, shared by the devices of a host [Gbit/s]."""
    egress_gbps: float | None = None
    """Bandwidth of the NIC for outgoing messages only [Gbit/s]. Default: `nic_gbps`."""
    ingress_gbps: float | None = None
    """Bandwidth of the NIC for incoming messages only [Gbit/s]. Default: `nic_gbps`."""
    burst_mib: float = 0.0
    """Size of the token bucket before the NIC: what a host sends after a silence as fast as its
    links, above `egress_gbps` [MiB]; tc's `burst`. Default: nothing."""

    def __post_init__(self) -> None:
        for name in ("count", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, is {getattr(self, name)}")
        for region in self.regions:
            check_name(region, "hosts.region")
        if self.name is not None:
            check_host(self.name, "hosts.name")
        check_ranges(self)
        if self.name is not None and (self.count > 1 or len(self.regions) != 1):
            raise ValueError(f"`name` is for one host; {self.name!r} stands for more: leave it out")
        stated = [name for name in _SPEEDS if getattr(self, name) is not None]
        if self.relative_speed != 1 and stated:
            raise ValueError(
                f"`relative_speed` and `{stated[0]}` exclude each other: it is a multiple of the "
                "speed of devices that state none; leave out one of them"
            )
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
            raise ValueError(
                "`hostfile` and `devices` exclude each other: its slots are the devices; leave out "
                "`devices`"
            )

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that have such hosts."""
        return (self.region,) if isinstance(self.region, str) else self.region


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a link: `[inside_host]`, `[inside_region]` and `[across_regions]`."""

    latency_ms: float
    """Latency, one way [ms]."""
    bandwidth_gbps: float
    """Bandwidth of a pair of devices while all other pairs communicate too [Gbit/s]."""
    alone_gbps: float | None = None
    """Bandwidth of a pair while nothing else communicates [Gbit/s]. Default: `bandwidth_gbps`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.alone_gbps is not None and not self.alone_gbps >= self.bandwidth_gbps:
            raise ValueError(
                f"`alone_gbps` must be at least `bandwidth_gbps` = {self.bandwidth_gbps}, is "
                f"{self.alone_gbps}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink(Speed):
    """A link between two regions, or inside one: both directions (`between`), or one."""

    between: tuple[str, str] | None = None
    """Two regions; sets both directions."""
    source: str | None = None
    """Region of the sender; sets one direction."""
    destination: str | None = None
    """Region of the receiver."""

    def __post_init__(self) -> None:
        Speed.__post_init__(self)  # `super()` does not work in a dataclass with slots
        _check_regions(self, "links")

    def directions(self) -> tuple[tuple[str, str], ...]:
        """Return the ordered pairs of regions."""
        return _directions(self, "links")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTrunk:
    """What all connections from one region to another share: both directions, or one."""

    capacity_gbps: float
    """Bandwidth of all connections together, in each direction [Gbit/s]."""
    between: tuple[str, str] | None = None
    """Two regions; each direction has this capacity."""
    source: str | None = None
    """Region of the sender; sets one direction."""
    destination: str | None = None
    """Region of the receiver."""

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_regions(self, "trunks")

    def directions(self) -> tuple[tuple[str, str], ...]:
        """Return the ordered pairs of regions."""
        return _directions(self, "trunks")


def _check_regions(entry: RegionLink | RegionTrunk, table: str) -> None:
    for field_name in ("between", "source", "destination"):
        given = getattr(entry, field_name)
        for region in (given,) if isinstance(given, str) else given or ():
            check_name(region, f"{table}.{field_name}")


def _directions(entry: RegionLink | RegionTrunk, table: str) -> tuple[tuple[str, str], ...]:
    if entry.between is not None:
        a, b = entry.between
        return ((a, b), (b, a))
    if entry.source is None or entry.destination is None:
        raise ValueError(
            f"`{table}` has an entry with neither `between` nor `source` + `destination`"
        )
    return ((entry.source, entry.destination),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Matrices over all ordered pairs of devices, inline or in a .csv or .npy file.

    Rows are senders, columns receivers; paths are relative to the cluster file.
    """

    latency_s: str | Rows
    """Latency, one way [s]."""
    bandwidth_bytes_per_s: str | Rows
    """Bandwidth while all other pairs communicate too [bytes/s]."""
    alone_bytes_per_s: str | Rows | None = None
    """Bandwidth while nothing else communicates [bytes/s]. Default: the same matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How `jaxpipe topo probe` measured the pairs, and the interquartile range of the samples."""

    small_bytes: int
    """Size of the messages that measure latency [bytes]."""
    small_repeats: int
    """Number of such messages per pair."""
    large_bytes: int
    """Size of the messages that measure bandwidth [bytes]."""
    large_repeats: int
    """Number of such messages per pair."""
    latency_spread_s: Rows
    """Interquartile range of the latency of each pair [s]."""
    bandwidth_spread_bytes_per_s: Rows
    """Interquartile range of the bandwidth of each pair [bytes/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file: hosts, and their links by region or pair by pair.

    A cluster has at most `MAX_DEVICES` devices, since links are matrices. The most specific link
    wins: `links` over `link_table`, over `inside_region` and `across_regions`.
    """

    name: str
    """Name of the cluster, as commands print it."""
    hosts: tuple[HostGroup, ...]
    """Groups of equal hosts, `[[hosts]]`, in the order of their devices."""
    links: tuple[RegionLink, ...] = ()
    """Links between regions, `[[links]]`."""
    trunks: tuple[RegionTrunk, ...] = ()
    """Bandwidths that all connections between two regions share, `[[trunks]]`. Default: each pair
    of devices has its link to itself."""
    link_table: str | None = None
    """CSV file of links with the columns region_a, region_b, latency_ms, bandwidth_gbps."""
    inside_region: Speed | None = None
    """Links between hosts of one region."""
    across_regions: Speed | None = None
    """Links between regions that nothing else names."""
    inside_host: Speed = field(default_factory=lambda: Speed(latency_ms=0, bandwidth_gbps=100))
    """Links between devices of one host."""
    restart_kb: float | None = None
    """What a connection between hosts sends in its first round trip after a silence [kB]; 14.48 by
    Linux' default on Ethernet. Default: connections keep their speed."""
    pairs: Pairs | None = None
    """Links of all pairs of devices, `[pairs]`, in place of links by region."""
    measured: Measured | None = None
    """How `pairs` was measured; written by `jaxpipe topo probe`."""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_ranges(self)
        # `inside_host` has a default: its presence says nothing.
        by_region = ("links", "link_table", "inside_region", "across_regions")
        given = [name for name in by_region if getattr(self, name)]
        if self.pairs is not None and given:
            raise ValueError(f"`pairs` has all links: leave out `{given[0]}`, or `pairs`")
        num_devices = sum(len(g.regions) * g.count * g.devices for g in self.hosts)
        if num_devices > MAX_DEVICES:
            raise ValueError(
                f"`hosts` has {num_devices:,} devices, and a cluster has at most {MAX_DEVICES:,}: "
                "lower `count` or `devices`"
            )


def parse(file: dict[str, Value]) -> ClusterFile:
    """Return the file, its fields checked.

    Raises:
        ValueError: a field is missing, unknown, or not what it should be.
    """
    _refuse_unknown(file, ClusterFile, "")
    parts = {"hosts": HostGroup, "links": RegionLink, "trunks": RegionTrunk}
    parts |= {"pairs": Pairs, "measured": Measured}
    parts |= dict.fromkeys(("inside_region", "across_regions", "inside_host"), Speed)
    for name, kind in parts.items():
        part = file.get(name)
        for item in part if isinstance(part, list | tuple) else [part]:
            _refuse_unknown(item, kind, f"{name}.")
    # After the names: msgspec ignores unknown fields, and a typo would be a default.
    try:
        return msgspec.convert(file, ClusterFile)
    except msgspec.ValidationError as error:
        raise ValueError(in_plain_words(str(error))) from error


def _refuse_unknown(part: Any, kind: Any, prefix: str) -> None:
    fields = list(kind.__dataclass_fields__)
    unknown = sorted(set(part) - set(fields)) if isinstance(part, dict) else []
    if unknown:
        choices = ", ".join(fields)
        raise ValueError(f"no field `{prefix}{unknown[0]}`: give {choices}")
