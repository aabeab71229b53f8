"""Build a plan: derive all of it from a placement, a shape and a schedule."""

from collections.abc import Sequence

import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.plan.decide.balance import balanced_cut
from jaxpipe.plan.decide.sync_order import suited_tree
from jaxpipe.plan.decide.task import Task
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import equal_pipelines
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import island_tree, with_trees
from jaxpipe.schedule import Schedule, ScheduleKind


def build(
    task: Task,
    placement: np.ndarray,
    *,
    microbatch: int,
    schedule: ScheduleKind | Schedule,
    cut: Cut | None = None,
    warmup: tuple[int, ...] | None = None,
    all_reduce: AllReduceKind = AllReduceKind.TREE,
) -> Plan:
    """Return the plan of a placement, replicas x stages, with sync trees for its all-reduce.

    The batch is a multiple of `microbatch` times the replicas. By default, `cut` is balanced for
    the slowest device of each stage.
    """
    # The slowest replica of a stage sets the pace of the gradient sync.
    cut = cut or balanced_cut(task.profile, task.slow[placement].max(axis=0))
    return with_suited_trees(
        task,
        Plan(
            pipelines=equal_pipelines(
                map(tuple, placement.tolist()),
                cut=cut,
                warmup=warmup,
                microbatch=microbatch,
                num_microbatches=task.batch // (len(placement) * microbatch),
            ),
            schedule=schedule,
            all_reduce=all_reduce,
            tied=task.tied,
        ),
    )


def with_suited_trees(task: Task, plan: Plan) -> Plan:
    """Return any plan with sync trees for its all-reduce, over the devices that hold each layer."""

    def tree(ranks: Sequence[int], num_gradients: int) -> SyncTree:
        return suited_tree(
            plan.all_reduce,
            task.cluster,
            {rank: plan.device(rank) for rank in ranks},
            num_bytes=num_gradients * task.bytes_each.gradient,
            chunk_bytes=task.chunk_bytes,
        )

    devices = task.cluster.devices
    return with_trees(
        plan,
        segment=lambda n, ranks: tree(ranks, task.profile.stage(plan.segments, n).num_gradients),
        shared=lambda ranks: tree(ranks, task.profile.embed.num_gradients),
        # Scalars are some bytes: there is no bandwidth to search a tree for.
        every=lambda ranks: island_tree({rank: devices[plan.device(rank)] for rank in ranks}),
    )
