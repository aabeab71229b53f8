"""Collectives between devices, and their duration on rings of equal links.

With p devices, latency a and b bytes/s, each over rings in which every device sends to the next:

    ============== ==================== =======================================================
    all-reduce     2 (p - 1) (a + n/pb) n: bytes of each device, before and after
    all-gather     (p - 1) (a + n/pb)   n: bytes that each device has afterwards
    reduce-scatter (p - 1) (a + n/pb)   n: bytes that each device adds
    all-to-all     (p - 1) (a + n/pb)   n: bytes that each device has before (and afterwards)
    ============== ==================== =======================================================

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005. The all-reduce is that of `jaxpipe.plan.cost.ring_s`; the second half of it is the all-gather.
"""

from dataclasses import dataclass

from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axes, MeshShape
from jaxpipe.collective.kinds import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a step, in each group of devices along `axes`.

    `num_bytes` is the larger of one device's input and output: before a reduce-scatter, after an
    all-gather.
    """

    kind: CollectiveKind
    num_bytes: int
    axes: Axes
    why: str = ""


def rounds(kind: CollectiveKind, *, num_devices: int) -> int:
    """Return how many messages of a p-th of the bytes each device sends, one after the other.

    >>> rounds(CollectiveKind.ALL_REDUCE, num_devices=4)
    6
    """
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (num_devices - 1)


def latency_s(kind: CollectiveKind, axes: Axes, mesh: MeshShape, *, launch_s: float = 0.0) -> float:
    """Return the seconds of a collective that do not depend on its bytes.

    `launch_s` is the time to start one, if more than one device takes part.
    """
    num_devices = mesh.size(axes)
    if num_devices == 1:
        return 0.0  # no other device: nothing is launched
    return launch_s + rounds(kind, num_devices=num_devices) * mesh.link(axes).latency_s


def wire_s(kind: CollectiveKind, axes: Axes, mesh: MeshShape, *, num_bytes: float) -> float:
    """Return the seconds of a collective that grow with its bytes."""
    num_devices = mesh.size(axes)
    # Per round, a p-th of the bytes; with one device there are no rounds.
    share = num_bytes / num_devices
    bandwidth = mesh.link(axes).bandwidth_bytes_per_s
    return rounds(kind, num_devices=num_devices) * share / bandwidth


def collective_s(collective: Collective, mesh: MeshShape, *, launch_s: float = 0.0) -> float:
    """Return the seconds of a collective.

    >>> from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axis, AxisLink
    >>> link = AxisLink(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> collective_s(
    ...     Collective(kind=CollectiveKind.ALL_REDUCE, num_bytes=8, axes=(Axis.OP,)),
    ...     MeshShape(dp=1, op=4, op_link=link),
    ... )
    18.0
    """
    kind, axes = collective.kind, collective.axes
    return latency_s(kind, axes, mesh, launch_s=launch_s) + wire_s(
        kind, axes, mesh, num_bytes=collective.num_bytes
    )
