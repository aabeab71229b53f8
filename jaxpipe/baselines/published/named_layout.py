"""Published baselines as plans: the devices of their ranks, equal stages, and their schedule.

========  =====================================================================================
`p8`      Megatron's pipeline of 8 stages: ranks in launch order, stage by stage; 1F1B
`t8`      Megatron's tensor parallelism over 8 devices; `p4t2`: 4 stages of 2; `p2t4`: 2 of 4
`zero3`   a replica for each host, whose devices share parameters and samples (ZeRO-3)
`dtfm`    DT-FM's scheduler: pipelines of 8 stages inside islands; GPipe
`random`  DT-FM without its scheduler: the same devices in a random order; GPipe
========  =====================================================================================

A rank has devices of one host, so `t8`, `p4t2` and `p2t4` need hosts of as many, and `zero3` shares
no parameters across hosts, as hybrid sharding does; replicas all-reduce their gradients. The
published runs had groups across hosts, too: `jaxpipe simulate` has them.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022, section 4.
"""

from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import TypeAlias

import numpy as np

from jaxpipe.baselines.published.dtfm import NUM_STAGES, scheduled, unscheduled
from jaxpipe.baselines.published.dtfm_launch_order import launch_order
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, Sharing, even_partition
from jaxpipe.plan.cost import overfull
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, build


class NamedLayout(StrEnum):
    """A published baseline of the literature."""

    P8 = "p8"
    """Megatron's pipeline of 8 stages."""
    T8 = "t8"
    """Megatron's tensor parallelism over 8 devices, without a pipeline."""
    P4T2 = "p4t2"
    """Megatron's 4 stages of 2 devices."""
    P2T4 = "p2t4"
    """Megatron's 2 stages of 4 devices."""
    ZERO3 = "zero3"
    """ZeRO-3 inside hosts, replicas across them."""
    DTFM = "dtfm"
    """DT-FM's, placed by its scheduler."""
    RANDOM = "random"
    """DT-FM's without its scheduler."""


_Groups: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""The devices of each rank, a row for each replica."""

_MEGATRON = {
    NamedLayout.P8: (NUM_STAGES, 1),
    NamedLayout.T8: (1, 8),
    NamedLayout.P4T2: (4, 2),
    NamedLayout.P2T4: (2, 4),
}
"""The stages, and the devices of each of them."""


def named_plan(layout: NamedLayout, task: Task, *, seed: int) -> Plan:
    """Return the plan of a baseline, with sync trees of ours; `seed` shuffles random ranks.

    Raises:
        PlanError: the cluster, the layers, the batch or the memory do not fit it.
    """
    groups = _groups(layout, task, seed=seed)
    num_stages, is_zero3 = len(groups[0]), layout is NamedLayout.ZERO3
    is_gpipe = layout in (NamedLayout.DTFM, NamedLayout.RANDOM)
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
            f"a stage fits into its device: those of `--layout` {layout} do not on cluster "
            f"{task.cluster.name!r}; use `--remat full`, or no `--layout`"
        )
    return plan


def _groups(layout: NamedLayout, task: Task, *, seed: int) -> _Groups:
    match layout:
        case NamedLayout.DTFM:
            return _alone(scheduled(task.cluster, batch=task.batch))
        case NamedLayout.RANDOM:
            return _alone(unscheduled(task.cluster, batch=task.batch, seed=seed))
        case NamedLayout.ZERO3:
            return _whole_hosts(task)
        case _:
            num_stages, tensor = _MEGATRON[layout]
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
            f"replicas of {num_stages} stages share devices and batch evenly: the cluster has "
            f"{len(order)} devices and `--batch` is {task.batch}; take a multiple of {size} "
            "devices, and a batch that the replicas divide"
        )
    groups = [order[first : first + tensor] for first in range(0, len(order), tensor)]
    hosts = task.cluster.host_of
    if apart := [group for group in groups if len({hosts[device] for device in group}) > 1]:
        names = ", ".join(task.cluster.devices[device].name for device in apart[0])
        raise PlanError(
            f"a rank has devices of one host: `--layout` has ranks of {tensor} devices, and of "
            f"cluster {task.cluster.name!r} {names} are on several hosts; take a cluster with "
            f"hosts of {tensor} devices or a multiple, or `jaxpipe simulate`"
        )
    return tuple(tuple(groups[replica::num_replicas]) for replica in range(num_replicas))


def _whole_hosts(task: Task) -> _Groups:
    """Return a replica for each host, of all its devices; hosts have equally many."""
    hosts = task.cluster.host_of
    order = sorted(range(len(task.cluster)), key=lambda device: hosts[device])
    groups = [tuple(each) for _, each in groupby(order, key=lambda device: hosts[device])]
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 or task.batch % len(order):
        raise PlanError(
            f"devices share the batch evenly: `--layout` {NamedLayout.ZERO3} has hosts of "
            f"{', '.join(map(str, sorted(sizes)))} devices, {len(order)} in all, and `--batch` is "
            f"{task.batch}; take equal hosts, and a multiple of their devices"
        )
    return tuple((group,) for group in groups)
