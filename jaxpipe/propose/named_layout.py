"""Published baselines as plans: the devices of their ranks, equal stages, and their schedule.

========  =====================================================================================
`p8`      Megatron's pipeline of 8 stages: ranks in launch order, stage by stage; 1F1B
`dtfm`    DT-FM's scheduler: pipelines of 8 stages inside islands; GPipe
`random`  DT-FM without its scheduler: the same devices in a random order; GPipe
========  =====================================================================================

The other baselines, t8, p4t2, p2t4 and zero3, share layers between devices, which a plan cannot
say; `jaxpipe simulate` has them.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022, section 4.
"""

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, even_partition
from jaxpipe.plan.cost import overfull
from jaxpipe.plan.decide import Task, build
from jaxpipe.propose.request import NamedLayout
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate.published.dtfm import NUM_STAGES, Placement, scheduled, unscheduled
from jaxpipe.simulate.published.dtfm_launch_order import launch_order


def named_plan(layout: NamedLayout, task: Task, *, seed: int) -> Plan:
    """Return the plan of a baseline, with sync trees of ours; `seed` shuffles random ranks.

    Raises:
        PlanError: the cluster, the layers, the batch or the memory do not fit it.
    """
    placement = np.array(_placement(layout, task, seed=seed))
    is_megatron = layout is NamedLayout.P8
    plan = build(
        task,
        placement,
        microbatch=1,
        schedule=ScheduleKind.ONE_F_ONE_B if is_megatron else ScheduleKind.GPIPE,
        cut=even_partition(num_layers=task.num_layers, num_stages=NUM_STAGES),
    )
    if overfull(plan, task.profile, task.cluster, each=task.bytes_each):
        raise PlanError(
            f"a stage fits into its device: those of `--layout` {layout} do not on cluster "
            f"{task.cluster.name!r}; use `--remat full`, or no `--layout`"
        )
    return plan


def _placement(layout: NamedLayout, task: Task, *, seed: int) -> Placement:
    match layout:
        case NamedLayout.DTFM:
            return scheduled(task.cluster, batch=task.batch)
        case NamedLayout.RANDOM:
            return unscheduled(task.cluster, batch=task.batch, seed=seed)
        case NamedLayout.P8:
            return _megatron(task)


def _megatron(task: Task) -> Placement:
    """Return the placement of Megatron: replicas are neighbours, stages are far apart."""
    order = launch_order(task.cluster)
    num_replicas, rest = divmod(len(order), NUM_STAGES)
    if rest or not num_replicas or task.batch % num_replicas:
        raise PlanError(
            f"replicas of {NUM_STAGES} stages share devices and batch evenly: the cluster has "
            f"{len(order)} devices and `--batch` is {task.batch}; take a multiple of {NUM_STAGES} "
            "devices, and a batch that the replicas divide"
        )
    return tuple(order[replica::num_replicas] for replica in range(num_replicas))
