"""DT-FM's plan: devices grouped by its published cost, and its schedule."""

from jaxpipe.errors import PlanError
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.build_plan import build, lacking_bytes, with_first_schedules
from jaxpipe.search.dtfm import Budget, link_weights
from jaxpipe.search.shapes import Shape, shapes
from jaxpipe.search.starts import grouped
from jaxpipe.search.task import Task

STAGES = 8
"""The stages of DT-FM's runs, the default if the task does not set them."""


def dtfm_plan(task: Task, *, seed: int, seconds: float) -> Plan:
    """Return the plan whose groups of devices have the least cost found, `dtfm_cost`.

    The cost does not determine the number of stages: it is the task's, or the largest up to 8; nor
    the schedule: it is GPipe, as in DT-FM, if it fits into memory.

    Raises:
        PlanError: no number of stages fits the devices, or no schedule their memory.

    Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous
    Environments", NeurIPS 2022, section 3.
    """
    cluster, shape = task.cluster, _shape(task)
    weights = link_weights(
        cluster.latency_s, cluster.bandwidth_bytes_per_s, group_size=shape.replicas
    )
    placement = grouped(weights, shape, seed=seed, budget=Budget(seconds=seconds))
    # One sample per microbatch, as in the runs of DT-FM.
    plan = build(task, placement, microbatch=1, schedule=ScheduleKind.GPIPE)
    plans = tuple(with_first_schedules(task, plan, grows=True))
    for plan in plans:
        if not lacking_bytes(task, plan):
            return plan
    names = ", ".join(plan.schedule_name for plan in plans)
    raise PlanError(
        f"a stage fits into its device: none of {names} does with "
        f"{shape.stages} stages on cluster {task.cluster.name!r}; use more `stages`"
    )


def _shape(task: Task) -> Shape:
    limit = task.fixed.depth or STAGES
    return max(
        (shape for shape in shapes(task) if shape.stages <= limit),
        key=lambda shape: (shape.stages, shape.replicas),
    )
