"""The published systems by name, each as a step of a workload on a cluster."""

from jaxpipe.baselines.published.dtfm import (
    NUM_STAGES,
    Placement,
    dtfm_step,
    scheduled,
    shuffled_hosts,
    unscheduled,
)
from jaxpipe.baselines.published.dtfm_launch_order import launch_order, shuffled
from jaxpipe.baselines.published.jaxpipe_on_dtfm import jaxpipe_step
from jaxpipe.baselines.published.megatron import MegatronLayout, megatron_step
from jaxpipe.baselines.published.pipeline_memory import peak_bytes, pipe_peak_bytes
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.published.zero3 import SAMPLES, zero3_step
from jaxpipe.baselines.systems import System
from jaxpipe.errors import PlanError
from jaxpipe.schedule import gpipe, one_f_one_b
from jaxpipe.simulate.constants import Constants
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.topo import Cluster

_DTFM = (System.DTFM, System.DTFM_UNSCHEDULED, System.DTFM_FAIR)

_SPLITS = {
    System.MEGATRON_P8: MegatronLayout(stages=8, tensor=1),
    System.MEGATRON_P8_UNSCHEDULED: MegatronLayout(stages=8, tensor=1),
    System.MEGATRON_T8: MegatronLayout(stages=1, tensor=8),
    System.MEGATRON_P4T2: MegatronLayout(stages=4, tensor=2),
    System.MEGATRON_P2T4: MegatronLayout(stages=2, tensor=4),
    System.PYTORCH_PIPE: MegatronLayout(stages=8, tensor=1),
}


def system_step(
    system: System,
    cluster: Cluster,
    *,
    workload: Workload,
    constants: Constants,
    seed: int = 2022,
) -> StepModel:
    """Return a step of a system; `seed` shuffles the ranks of those without a scheduler.

    "Unscheduled" ranks are random over all devices, "fair" ones over all hosts, with the devices of
    a host side by side. Where the devices do not share the batch evenly, as 48, fewer train.

    Raises:
        PlanError: the cluster or the batch does not fit the system.
    """
    constants = constants.on(cluster)
    if system not in _SPLITS and (workload.microbatch != 1 or not workload.recompute):
        raise PlanError(
            f"`microbatch` must be 1, with recomputation, for {system}, which ran only so, not "
            f"{workload.microbatch}; simulate a layout of Megatron"
        )
    if system is System.JAXPIPE:
        return jaxpipe_step(cluster, workload=workload, constants=constants)
    if system in _DTFM:
        placement = _dtfm_placement(system, cluster, batch=workload.batch, seed=seed)
        return dtfm_step(cluster, placement, workload=workload, constants=constants)
    if system is System.ZERO3:
        order = _devices(cluster, group=1, batch=workload.batch // SAMPLES)
        return zero3_step(cluster, order, workload=workload, constants=constants)
    split = _SPLITS[system]
    order = _devices(cluster, group=split.stages * split.tensor, batch=workload.batch)
    if system is System.MEGATRON_P8_UNSCHEDULED:
        order = shuffled(order, seed=seed)
    return megatron_step(
        cluster,
        order,
        split=split,
        workload=workload,
        constants=constants,
        schedule_of=gpipe if system is System.PYTORCH_PIPE else one_f_one_b,
    )


def system_peak_bytes(system: System, cluster: Cluster, *, workload: Workload) -> float | None:
    """Return the memory that the fullest device needs; None for systems without such a model."""
    if system not in _SPLITS:
        return None
    split = _SPLITS[system]
    if system is System.PYTORCH_PIPE:
        return pipe_peak_bytes(workload, num_stages=split.stages)
    group = split.stages * split.tensor
    num_devices = len(_devices(cluster, group=group, batch=workload.batch))
    return peak_bytes(split, workload, num_replicas=num_devices // group)


def num_devices_used(system: System, step: StepModel) -> int:
    """Return the number of devices that train in a step of a system."""
    # A rank of Megatron stands for the devices over which its stage is split.
    return step.num_ranks * (_SPLITS[system].tensor if system in _SPLITS else 1)


def _devices(cluster: Cluster, *, group: int, batch: int) -> tuple[int, ...]:
    """Return the devices that train, in launch order.

    All do if groups of them share the batch evenly, else those that would under DT-FM.
    """
    order = launch_order(cluster)
    num_groups, rest = divmod(len(order), group)
    if (not rest and batch % max(1, num_groups) == 0) or len(order) < NUM_STAGES:
        return order
    return tuple(device for row in scheduled(cluster, batch=batch) for device in row)


def _dtfm_placement(system: System, cluster: Cluster, *, batch: int, seed: int) -> Placement:
    if system is System.DTFM_UNSCHEDULED:
        return unscheduled(cluster, batch=batch, seed=seed)
    rows = scheduled(cluster, batch=batch)
    return rows if system is System.DTFM else shuffled_hosts(cluster, rows, seed=seed)
