"""Seconds of a stage's compute for one microbatch, and of the rings inside a tensor-parallel one.

Both are closed forms: a simulated step asks for them once, and has a million computes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxpipe.errors import PlanError
from jaxpipe.simulate.published.constants import Speeds
from jaxpipe.simulate.published.workload import Workload
from topo import Cluster

_BACKWARD_FORWARDS = 3
"""A backward recomputes the forward, then takes two forwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The seconds of a forward and of a backward, by rank."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def durations(
    cluster: Cluster,
    placement: tuple[tuple[int, ...], ...],
    cut: tuple[int, ...],
    *,
    workload: Workload,
    speeds: Speeds,
) -> Durations:
    """Return the seconds of a microbatch: FLOPs over the fraction of the peak that a stage reaches.

    Raises:
        PlanError: the speed of a device is not known.
    """
    forward_s = tuple(
        cut[stage]
        * workload.layer_forward_flop
        / _flops_per_s(cluster, row, stage, workload)
        / (speeds.remote_fraction if is_remote(cluster, row, stage) else speeds.local_fraction)
        for row in placement
        for stage in range(len(row))
    )
    return Durations(
        forward_s=forward_s, backward_s=tuple(_BACKWARD_FORWARDS * each for each in forward_s)
    )


def is_remote(cluster: Cluster, row: tuple[int, ...], stage: int) -> bool:
    """Return whether a stage, on the device `row[stage]`, has a neighbour on another host."""
    # From 0 at least: a slice from -1 would start at the last stage.
    hosts = [cluster.devices[device].host for device in row[max(0, stage - 1) : stage + 2]]
    return any(a != b for a, b in pairwise(hosts))


def _flops_per_s(cluster: Cluster, row: tuple[int, ...], stage: int, workload: Workload) -> float:
    try:
        return cluster.devices[row[stage]].flops_per_s(workload.precision)
    except ValueError as error:
        raise PlanError(f"cluster {cluster.name!r}: {error}") from error


def ring_step_s(
    cluster: Cluster,
    rings: Sequence[Sequence[int]],
    part_bytes: float,
    *,
    nic_efficiency: float,
) -> float:
    """Return the seconds of one round, in which every device sends a part to the next of its ring.

    All rings (of devices) send at once and share the NICs; the slowest link counts.

    >>> import topo
    >>> pair = topo.load("homogeneous:hosts=2,delay_ms=500,bandwidth_gbps=8")
    >>> ring_step_s(pair, [(0, 1)], 1e9, nic_efficiency=1.0)
    1.5
    """
    host_of = cluster.host_of
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    # Rings that leave a host at the same time share its NIC.
    leaving = Counter(host_of[a] for a, b in hops if host_of[a] != host_of[b])

    def rate(a: int, b: int) -> float:
        alone = float(cluster.alone_bytes_per_s[a, b])
        if host_of[a] == host_of[b]:
            return alone
        nic = nic_efficiency * cluster.hosts[host_of[a]].egress_bytes_per_s
        return min(alone, nic / leaving[host_of[a]])

    return max(
        (float(cluster.latency_s[a, b]) + part_bytes / rate(a, b) for a, b in hops if a != b),
        default=0.0,
    )
