"""Published systems as plans: the devices of their ranks, equal stages, and their schedule.

==================  ===========================================================================
`megatron-p8`       a pipeline of 8 stages: ranks in launch order, stage by stage; 1F1B
`megatron-t8`       tensor parallelism over 8 devices; `-p4t2`: 4 stages of 2; `-p2t4`: 2 of 4
`zero3`             a replica for each host, whose devices share parameters and samples
`dtfm`              DT-FM's scheduler: pipelines of 8 stages inside islands; GPipe
`dtfm-unscheduled`  without the scheduler: the same devices in a random order; GPipe
==================  ===========================================================================

A rank has devices of one host, so tensor parallelism needs hosts of as many, and `zero3` shares
no parameters across hosts, as hybrid sharding does; replicas all-reduce their gradients. The
published runs had groups across hosts, too: `jaxpipe published simulate` has them.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022, section 4.
"""

from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

import numpy as np

from jaxpipe.baselines.published.dtfm import NUM_STAGES, scheduled, unscheduled
from jaxpipe.baselines.published.dtfm_launch_order import launch_order
from jaxpipe.baselines.systems import System
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, Sharing, even_partition
from jaxpipe.plan.cost import overfull
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, build

_Groups: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""The devices of each rank, a row for each replica."""

_MEGATRON = {
    System.MEGATRON_P8: (NUM_STAGES, 1),
    System.MEGATRON_T8: (1, 8),
    System.MEGATRON_P4T2: (4, 2),
    System.MEGATRON_P2T4: (2, 4),
}
"""The stages, and the devices of each of them."""


def named_plan(system: System, task: Task, *, seed: int) -> Plan:
    """Return the plan of a system, with sync trees of ours; `seed` shuffles random ranks.

    Raises:
        PlanError: the cluster, the layers, the batch or the memory do not fit it.
    """
    groups = _groups(system, task, seed=seed)
    num_stages, is_zero3 = len(groups[0]), system is System.ZERO3
    is_gpipe = system in (System.DTFM, System.DTFM_UNSCHEDULED)
    plan = build(
        task,
        np.array([[group[0] for group in row] for row in groups]),
        # Each device of a group computes samples of its own.
        microbatch=len(groups[0][0]) if is_zero3 else 1,
        schedule=ScheduleKind.GPIPE if is_gpipe else ScheduleKind.ONE_F_ONE_B,
        cut=even_partition(num_layers=task.num_layers, num_stages=num_stages),
    ).on_groups(groups)
    if is_zero3:
        plan = replace(plan, sharing=Sharing.ZERO3)
    if overfull(plan, task.profile, task.cluster, each=task.bytes_each):
        raise PlanError(
            f"{system}: one of its stages does not fit into the memory of its device on cluster "
            f"{task.cluster.name!r}; use `--remat full`, or larger devices"
        )
    return plan


def check_heads(plan: Plan, num_heads: int) -> None:
    """Refuse a plan whose ranks have more devices than heads, or do not divide them.

    Raises:
        PlanError: the devices of a rank do not divide `num_heads`.
    """
    divides_heads = plan.sharing in (Sharing.TENSOR, Sharing.SEQUENCE)
    parts = {size for pipeline in plan.pipelines for size in pipeline.tensor_parts}
    sizes = parts if divides_heads else set()
    if wrong := [size for size in sorted(sizes) if num_heads % size]:
        raise PlanError(
            f"`num_heads` ({num_heads}) must be a multiple of the devices of each rank, and a rank "
            f"has {wrong[0]}; choose another layout or model"
        )


def _groups(system: System, task: Task, *, seed: int) -> _Groups:
    match system:
        case System.DTFM:
            return _alone(scheduled(task.cluster, batch=task.batch))
        case System.DTFM_UNSCHEDULED:
            return _alone(unscheduled(task.cluster, batch=task.batch, seed=seed))
        case System.ZERO3:
            return _whole_hosts(task)
        case _:
            num_stages, tensor = _MEGATRON[system]
            return _megatron(task, num_stages=num_stages, tensor=tensor)


def _alone(placement: tuple[tuple[int, ...], ...]) -> _Groups:
    return tuple(tuple((device,) for device in row) for row in placement)


def _megatron(task: Task, *, num_stages: int, tensor: int) -> _Groups:
    """Return the groups of Megatron: replicas are neighbours, stages are far apart."""
    order = launch_order(task.cluster)
    num_replicas, rest = divmod(len(order), num_stages * tensor)
    if rest or not num_replicas or task.batch % num_replicas:
        size = num_stages * tensor
        raise PlanError(
            f"`--batch` ({task.batch}) and {len(order)} devices must be shared evenly by replicas "
            f"of {num_stages} stages; take a multiple of {size} devices, and a batch that the "
            "replicas divide"
        )
    groups = [order[first : first + tensor] for first in range(0, len(order), tensor)]
    hosts = task.cluster.host_of
    if apart := [group for group in groups if len({hosts[device] for device in group}) > 1]:
        names = ", ".join(task.cluster.devices[device].name for device in apart[0])
        raise PlanError(
            f"cluster {task.cluster.name!r} has {names} on several hosts, and the layout needs "
            f"ranks of {tensor} devices of one host; take a cluster with hosts of {tensor} devices "
            "or a multiple, or `jaxpipe published simulate`"
        )
    return tuple(tuple(groups[replica::num_replicas]) for replica in range(num_replicas))


def _whole_hosts(task: Task) -> _Groups:
    """Return a replica for each host, of all its devices; hosts have equally many."""
    hosts = task.cluster.host_of
    order = sorted(range(len(task.cluster)), key=lambda device: hosts[device])
    groups = [tuple(group) for _, group in groupby(order, key=lambda device: hosts[device])]
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 or task.batch % len(order):
        raise PlanError(
            f"`--batch` ({task.batch}) must be shared evenly by equal hosts for {System.ZERO3}: "
            f"hosts have {', '.join(map(str, sorted(sizes)))} devices, {len(order)} in all; take "
            "equal hosts, and a multiple of their devices"
        )
    return tuple((group,) for group in groups)
