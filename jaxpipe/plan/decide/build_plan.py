"""Build a plan: derive all of it from a placement, a shape and a schedule."""

import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.plan.decide.balance import balanced_cut
from jaxpipe.plan.decide.sync_order import suited_tree
from jaxpipe.plan.decide.task import Task
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import island_tree
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
    num_replicas, num_stages = placement.shape
    device_of = dict(enumerate(placement.ravel().tolist()))
    stages = [
        {rank: device for rank, device in device_of.items() if rank % num_stages == stage}
        for stage in range(num_stages)
    ]

    def tree(ranks: dict[int, int], parameters: int) -> SyncTree:
        return suited_tree(
            all_reduce,
            task.cluster,
            ranks,
            num_bytes=parameters * task.bytes_each.gradient,
            chunk_bytes=task.chunk_bytes,
        )

    ends = {**stages[0], **stages[-1]}
    return Plan(
        placement=tuple(tuple(row) for row in placement.tolist()),
        cut=cut,
        schedule=schedule,
        all_reduce=all_reduce,
        warmup=warmup,
        microbatch=microbatch,
        num_microbatches=task.batch // (num_replicas * microbatch),
        tied=task.tied,
        sync=tuple(
            tree(devices, task.profile.stage(cut, stage).parameters)
            for stage, devices in enumerate(stages)
        ),
        # Sorted: candidate trees follow the order of the ranks.
        sync_shared=tree(dict(sorted(ends.items())), task.profile.embed.parameters),
        # Scalars are some bytes: there is no bandwidth to search a tree for.
        sync_all=island_tree({r: task.cluster.devices[d] for r, d in device_of.items()}),
    )
