"""DT-FM's plan: devices grouped by its published cost, and its schedule."""

from collections.abc import Iterator

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import build, with_first_schedules
from jaxpipe.search.dtfm import Budget, link_weights
from jaxpipe.search.shapes import Shape, shapes
from jaxpipe.search.starts import grouped
from jaxpipe.search.task import Task

STAGES = 8
"""The stages of DT-FM's runs, the default if the task does not set them."""


def dtfm_plans(task: Task, best: Best) -> Iterator[Plan]:
    """Yield plans of the groups of devices with the least `dtfm_cost` found, until one fits.

    The cost does not determine the number of stages: it is the task's, or the largest up to 8; nor
    the schedule: it is GPipe, as in DT-FM, or the first that fits into memory; nor the microbatch:
    one sample, as in the runs of DT-FM.

    Raises:
        PlanError: no number of stages fits the devices.

    Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous
    Environments", NeurIPS 2022, section 3.
    """
    cluster, shape = task.cluster, _shape(task)
    weights = link_weights(
        cluster.latency_s, cluster.bandwidth_bytes_per_s, group_size=shape.replicas
    )
    placement = grouped(weights, shape, seed=best.effort.seed, budget=Budget(seconds=best.left_s()))
    plan = build(
        task,
        placement,
        microbatch=task.fixed.microbatch or 1,
        schedule=ScheduleKind.GPIPE,
        warmup=task.fixed.warmup,
        all_reduce=task.fixed.all_reduce or AllReduceKind.TREE,
    )
    for fitting in with_first_schedules(task, plan, grows=True):
        if best.plan is None:
            yield fitting


def _shape(task: Task) -> Shape:
    limit = task.fixed.depth or STAGES
    return max(
        (shape for shape in shapes(task) if shape.stages <= limit),
        key=lambda shape: (shape.stages, shape.replicas),
    )
