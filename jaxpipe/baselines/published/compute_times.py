"""Seconds of a stage's compute for one microbatch, by its FLOPs and its neighbours."""

from dataclasses import dataclass

from jaxpipe.baselines.published.workload import Workload
from jaxpipe.errors import PlanError
from jaxpipe.simulate.constants import Speeds
from jaxpipe.simulate.plan_step import is_remote
from jaxpipe.topo import Cluster


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
        * workload.microbatch
        * workload.layer_forward_flop
        / _flops_per_s(cluster, row, stage, workload)
        / (speeds.remote_fraction if is_remote(cluster, row, stage) else speeds.local_fraction)
        for row in placement
        for stage in range(len(row))
    )
    return Durations(
        forward_s=forward_s,
        backward_s=tuple(workload.backward_forwards * forward for forward in forward_s),
    )


def _flops_per_s(cluster: Cluster, row: tuple[int, ...], stage: int, workload: Workload) -> float:
    try:
        return cluster.devices[row[stage]].flops_per_s(workload.precision)
    except ValueError as error:
        raise PlanError(f"cluster {cluster.name!r}: {error}") from error
