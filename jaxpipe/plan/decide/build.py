"""From decisions to a plan: everything that follows from a placement, a shape and a schedule."""

import numpy as np

from jaxpipe.plan.cut import Cut
from jaxpipe.plan.decide.balance import balanced_cut
from jaxpipe.plan.decide.sync_order import fastest_tree
from jaxpipe.plan.decide.task import Task
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import island_tree
from jaxpipe.schedule import ScheduleKind


def build(
    task: Task,
    placement: np.ndarray,
    *,
    microbatch: int,
    schedule: ScheduleKind,
    cut: Cut | None = None,
    warmup: tuple[int, ...] | None = None,
) -> Plan:
    """Return the plan of a placement, replicas x stages, with the fastest sync trees.

    The batch is a multiple of `microbatch` times the replicas. Without `cut` layers are balanced
    for the slowest device of each stage.
    """
    cut = cut or balanced_cut(task.profile, task.slow[placement].max(axis=0))
    num_replicas, num_stages = placement.shape
    device_of = dict(enumerate(placement.ravel().tolist()))
    stages = [
        {rank: device for rank, device in device_of.items() if rank % num_stages == stage}
        for stage in range(num_stages)
    ]
    ends = {r: task.cluster.devices[d] for s in {0, num_stages - 1} for r, d in stages[s].items()}
    return Plan(
        placement=tuple(tuple(row) for row in placement.tolist()),
        cut=cut,
        schedule=schedule,
        warmup=warmup,
        microbatch=microbatch,
        num_microbatches=task.batch // (num_replicas * microbatch),
        tied=task.tied,
        sync=tuple(
            fastest_tree(
                task.cluster,
                devices,
                num_bytes=task.profile.stage(cut, stage).parameters * task.bytes_each.gradient,
            )
            for stage, devices in enumerate(stages)
        ),
        sync_shared=island_tree(dict(sorted(ends.items()))),
        sync_all=island_tree({r: task.cluster.devices[d] for r, d in device_of.items()}),
    )
