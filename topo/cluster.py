"""A cluster: devices on hosts in regions, and the directed links between all of them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one core that plays one."""

    name: str
    host: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins one device to another, in this direction."""

    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cluster:
    """Devices and the links of all their ordered pairs.

    `latency_s[a, b]` and `bandwidth_bytes_per_s[a, b]` speak of the link from `a` to `b`; the
    diagonals are 0 and infinity.

    Raises:
        ValueError: a matrix has the wrong shape, or holds a latency below 0 or a bandwidth that
            is not above 0.
    """

    name: str
    devices: tuple[Device, ...]
    latency_s: np.ndarray
    bandwidth_bytes_per_s: np.ndarray

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("a cluster has at least one device: `hosts` is empty, add one")
        shape = (len(self.devices), len(self.devices))
        for field in ("latency_s", "bandwidth_bytes_per_s"):
            if getattr(self, field).shape != shape:
                raise ValueError(f"`{field}` is {getattr(self, field).shape}, must be {shape}")
        if not (self.latency_s >= 0).all():
            raise ValueError(f"`latency_s` must not be negative, is {self.latency_s.min()}")
        if not (self.bandwidth_bytes_per_s > 0).all():
            lowest = self.bandwidth_bytes_per_s.min()
            raise ValueError(f"`bandwidth_bytes_per_s` must be above 0, is {lowest}")

    def __len__(self) -> int:
        return len(self.devices)

    def link(self, source: int, destination: int) -> Link:
        """Return the link from one device to another."""
        return Link(
            latency_s=float(self.latency_s[source, destination]),
            bandwidth_bytes_per_s=float(self.bandwidth_bytes_per_s[source, destination]),
        )
