"""A cluster: devices on hosts in regions, and the directed links between all of them.

There are two bandwidths, because a table of pairs and a physical link are different things::

    bandwidth_bytes_per_s[a, b]   of the pair while all other pairs communicate as well: the table
                                  that planners and DT-FM's published cost use
    alone_bytes_per_s[a, b]       of one transfer on an idle network; transfers that leave or enter
                                  a host at the same time share its NIC, `Host.egress_bytes_per_s`
                                  and `Host.ingress_bytes_per_s`

In case 1 of DT-FM the NIC of 25 Gbps serves eight devices: 3.125 Gbps by the first, 25 by the
second. Where links were shaped pair by pair the two are the same array.

What all transfers from one region to another share, as most regions far apart do, is a `Trunk`.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

import numpy as np

from jaxpipe.topo.gpu import Gpu, Precision
from jaxpipe.topo.names import check_cluster, check_device, check_host, check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one core that stands for one.

    `memory_bytes` is by default that of its `gpu`. `peak_flops_per_s` is the peak of its matrix
    products, if it is not that of its `gpu`; `effective_flops_per_s` is its speed in training, if
    that was measured. Devices with neither count as fast as a device that is known otherwise, times
    their `relative_speed`. `dollars_per_hour` is its price, `egress_dollars_per_gb` that of 1e9
    bytes that it sends to another region; None if they are not known. `watts` is the power that it
    draws, by default the thermal design power of its `gpu`.
    """

    name: str
    host: str
    region: str
    gpu: Gpu | None = None
    effective_flops_per_s: float | None = None
    peak_flops_per_s: float | None = None
    relative_speed: float = 1.0
    memory_bytes: int | None = None
    dollars_per_hour: float | None = None
    egress_dollars_per_gb: float | None = None
    watts: float | None = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "watts"):
            if getattr(self, name) is None and self.gpu is not None:
                # A frozen dataclass can only be set like this.
                object.__setattr__(self, name, getattr(self.gpu, name))
        for name in ("effective_flops_per_s", "peak_flops_per_s", "memory_bytes", "watts"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:  # chained: nan is refused as well
                raise ValueError(f"`{name}` must be above 0 and finite, is {value}")
        for name in ("dollars_per_hour", "egress_dollars_per_gb"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"`{name}` must be from 0 to below infinity, is {value}")

    @property
    def has_speed(self) -> bool:
        """Whether `flops_per_s` is known."""
        stated = (self.effective_flops_per_s, self.peak_flops_per_s, self.gpu)
        return any(speed is not None for speed in stated)

    def peak(self, precision: Precision) -> float | None:
        """Return the peak FLOP/s of its matrix products; None if that is unknown.

        A GPU without TF32 computes such products in float32.

        Raises:
            ValueError: the GPU does not support the precision.
        """
        if self.peak_flops_per_s is not None or self.gpu is None:
            return self.peak_flops_per_s
        return self.gpu.peak_flops_per_s(self.gpu.product_precision(precision))

    def flops_per_s(self, precision: Precision) -> float:
        """Return the effective FLOP/s, or the peak if that is unknown.

        Raises:
            ValueError: neither is known.
        """
        if self.effective_flops_per_s is not None:
            return self.effective_flops_per_s
        peak = self.peak(precision)
        if peak is None:
            raise ValueError(
                f"device {self.name!r} has no known speed: give its hosts `gpu`, `tflops` or "
                f"`effective_tflops` in the cluster's file"
            )
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine; its devices share the bandwidth of its NIC (infinity: no limit).

    After a silence it sends up to `burst_bytes` faster, as fast as its links: what leaves is
    limited by a token bucket (`jaxpipe.topo.token_bucket`).
    """

    name: str
    region: str
    egress_bytes_per_s: float = inf
    ingress_bytes_per_s: float = inf
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_host(self.name, "hosts")
        check_name(self.region, "region")
        for name in ("egress_bytes_per_s", "ingress_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, is {getattr(self, name)}")
        if not 0 <= self.burst_bytes < inf:
            raise ValueError(f"`burst_bytes` must be from 0, and finite, is {self.burst_bytes}")
        if self.burst_bytes and self.egress_bytes_per_s == inf:
            raise ValueError(
                f"`burst_mib` of host {self.name!r} is above a limit that it does not have: give "
                "`nic_gbps` or `egress_gbps`, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """The bandwidth that all transfers from one region to another share, in this direction."""

    source: str
    destination: str
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.source == self.destination:
            raise ValueError(f"`trunks` must join two regions, not {self.source!r} with itself")
        if not 0 < self.bytes_per_s < inf:
            raise ValueError(
                f"`trunks` must have a bandwidth above 0 and finite, not {self.bytes_per_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link from one device to another."""

    latency_s: float
    bandwidth_bytes_per_s: float


def _as_bandwidth() -> np.ndarray:
    # Of no size: stands for the same matrix as the bandwidth, which no default can refer to.
    return np.empty((0, 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cluster:
    """Devices and the links of all their ordered pairs.

    `latency_s[a, b]` and `bandwidth_bytes_per_s[a, b]` are those of the link from `a` to `b`; the
    diagonals are 0 and infinity. A connection between two hosts sends `restart_bytes` in its first
    round trip after a silence (None: it keeps its speed). By default, `alone_bytes_per_s` is the
    same bandwidth, and `hosts` are those that the devices name, without a limit. Regions without
    one of the `trunks` share nothing. Scripts, files and terminals take all names as they are:
    `jaxpipe.topo.names` has checked them.

    Raises:
        ValueError: a name is not one; a matrix has the wrong shape, or holds a latency below 0 or a
            bandwidth that is not above 0; two devices or hosts share a name; the host of a device,
            or a region of a trunk, is missing.
    """

    name: str
    devices: tuple[Device, ...]
    latency_s: np.ndarray
    bandwidth_bytes_per_s: np.ndarray
    alone_bytes_per_s: np.ndarray = field(default_factory=_as_bandwidth)
    hosts: tuple[Host, ...] = ()
    trunks: tuple[Trunk, ...] = ()
    restart_bytes: float | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("`hosts` must have at least one device: add a host")
        if not self.alone_bytes_per_s.size:
            # A frozen dataclass can only be set like this. Both names then refer to one array.
            object.__setattr__(self, "alone_bytes_per_s", self.bandwidth_bytes_per_s)
        if not self.hosts:
            named = {device.host: device.region for device in self.devices}
            hosts = tuple(Host(name=name, region=region) for name, region in named.items())
            object.__setattr__(self, "hosts", hosts)
        if self.restart_bytes is not None and not 0 < self.restart_bytes < inf:
            raise ValueError(f"`restart_kb` must be above 0, is {self.restart_bytes / 1e3:g}")
        self._check_names()
        self._check_trunks()
        self._check_matrices()

    def _check_names(self) -> None:
        check_cluster(self.name, "name")
        for device in self.devices:
            check_device(device.name, "devices")
        for what, members in (("devices", self.devices), ("hosts", self.hosts)):
            name, count = Counter(member.name for member in members).most_common(1)[0]
            if count > 1:
                raise ValueError(
                    f"`{what}` must have different names; {name!r} occurs {count} times"
                )
        regions = {host.name: host.region for host in self.hosts}
        for device in self.devices:
            if regions.get(device.host) != device.region:
                raise ValueError(
                    f"device {device.name!r} is on host {device.host!r} in {device.region!r}, "
                    f"which is missing in `hosts`"
                )

    def _check_trunks(self) -> None:
        for trunk in self.trunks:
            for region in (trunk.source, trunk.destination):
                if region not in self.regions:
                    raise ValueError(
                        f"`trunks` must name regions of `hosts`: no host is in {region!r}; choose "
                        f"from {', '.join(self.regions)}"
                    )
        if len(self.trunk_numbers) < len(self.trunks):
            raise ValueError("`trunks` must have one entry for each direction: remove the second")

    def _check_matrices(self) -> None:
        shape = (len(self.devices), len(self.devices))
        for name in ("latency_s", "bandwidth_bytes_per_s", "alone_bytes_per_s"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"`{name}` is {getattr(self, name).shape}, must be {shape}")
        # `not all`: nan compares as false, and is refused.
        if not (self.latency_s >= 0).all():
            raise ValueError(f"`latency_s` must not be negative, is {self.latency_s.min()}")
        for name in ("bandwidth_bytes_per_s", "alone_bytes_per_s"):
            if not (getattr(self, name) > 0).all():
                raise ValueError(f"`{name}` must be above 0, is {getattr(self, name).min()}")

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def host_of(self) -> tuple[int, ...]:
        """For each device, the index of its host in `hosts`."""
        index = {host.name: i for i, host in enumerate(self.hosts)}
        return tuple(index[device.host] for device in self.devices)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions, each once, in the order of the hosts."""
        return tuple(dict.fromkeys(host.region for host in self.hosts))

    @property
    def trunk_numbers(self) -> dict[tuple[str, str], int]:
        """The index in `trunks` of each pair of regions that shares one: source, destination."""
        return {
            (trunk.source, trunk.destination): number for number, trunk in enumerate(self.trunks)
        }

    def link(self, source: int, destination: int) -> Link:
        """Return the link from one device to another."""
        return Link(
            latency_s=float(self.latency_s[source, destination]),
            bandwidth_bytes_per_s=float(self.bandwidth_bytes_per_s[source, destination]),
        )
