"""A mesh of two axes: the number of devices along each, and its links."""

from dataclasses import dataclass
from enum import IntEnum
from math import inf, prod

from jaxpipe.errors import PlanError
from jaxpipe.topo import Cluster


class Axis(IntEnum):
    """An axis of the mesh; the value is its position."""

    DP = 0
    OP = 1

    @property
    def label(self) -> str:
        """The name of the axis in a `jax.sharding.Mesh`."""
        return self.name.lower()


Axes = tuple[Axis, ...]
"""Axes that act together, the outer first; none are the empty tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLink:
    """The link to the next device along an axis; free by default."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = inf

    def __post_init__(self) -> None:
        if not self.latency_s >= 0:  # negated, so that nan is refused as well
            raise PlanError(f"`latency_s` must not be negative, is {self.latency_s}; give seconds")
        if not self.bandwidth_bytes_per_s > 0:
            raise PlanError(
                f"`bandwidth_bytes_per_s` must be above 0, is {self.bandwidth_bytes_per_s}; "
                "give bytes per second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """dp x op devices, row by row: device `i * op + j` stands at (i, j).

    >>> mesh = MeshShape(dp=2, op=4)
    >>> mesh.num_devices, mesh.size((Axis.OP,)), mesh.size((Axis.DP, Axis.OP))
    (8, 4, 8)

    Raises:
        PlanError: an axis has no devices.
    """

    dp: int
    op: int
    dp_link: AxisLink = AxisLink()
    op_link: AxisLink = AxisLink()

    def __post_init__(self) -> None:
        for name in ("dp", "op"):
            if not getattr(self, name) >= 1:
                raise PlanError(f"`{name}` ({getattr(self, name)}) must be at least 1")

    @property
    def num_devices(self) -> int:
        """All devices of the mesh."""
        return self.dp * self.op

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of devices along each axis, in the order of `Axis`."""
        return (self.dp, self.op)

    @property
    def links(self) -> tuple[AxisLink, AxisLink]:
        """The link along each axis, in the order of `Axis`."""
        return (self.dp_link, self.op_link)

    @property
    def real_axes(self) -> Axes:
        """The axes along which there is more than one device."""
        return tuple(axis for axis in Axis if self.sizes[axis] > 1)

    def size(self, axes: Axes) -> int:
        """Return the number of devices in a group along these axes."""
        return prod(self.sizes[axis] for axis in axes)

    def link(self, axes: Axes) -> AxisLink:
        """Return the link of a ring along these axes: the slowest that it passes."""
        # A ring along both axes has hops of either kind, and is as slow as the slowest.
        links = [self.links[axis] for axis in axes if self.sizes[axis] > 1]
        return AxisLink(
            latency_s=max((link.latency_s for link in links), default=0.0),
            bandwidth_bytes_per_s=min((link.bandwidth_bytes_per_s for link in links), default=inf),
        )


def mesh_on(cluster: Cluster, *, dp: int, op: int) -> MeshShape:
    """Return the mesh of a cluster's first dp x op devices, in their order.

    The link of an axis is the slowest hop of all rings along it, at the bandwidth
    that a pair has while all other pairs send as well, as all rings of an axis do.

    >>> from jaxpipe import topo
    >>> mesh_on(topo.load("two-region"), dp=2, op=2).dp_link.latency_s
    0.011

    Raises:
        PlanError: the cluster has fewer devices.
    """
    if dp * op > len(cluster):
        raise PlanError(
            f"`dp` ({dp}) x `op` ({op}) must be at most the {len(cluster)} devices of cluster "
            f"{cluster.name!r}; lower one of them"
        )
    # Devices are numbered row by row: neighbours along dp are op devices apart.
    along_dp = [[i * op + j for i in range(dp)] for j in range(op)]
    along_op = [[i * op + j for j in range(op)] for i in range(dp)]
    return MeshShape(
        dp=dp, op=op, dp_link=_slowest(cluster, along_dp), op_link=_slowest(cluster, along_op)
    )


def _slowest(cluster: Cluster, rings: list[list[int]]) -> AxisLink:
    hops = [
        cluster.link(ring[index], ring[(index + 1) % len(ring)])
        for ring in rings
        if len(ring) > 1
        for index in range(len(ring))  # the ring closes: its last hop may be the slowest
    ]
    return AxisLink(
        latency_s=max((hop.latency_s for hop in hops), default=0.0),
        bandwidth_bytes_per_s=min((hop.bandwidth_bytes_per_s for hop in hops), default=inf),
    )
