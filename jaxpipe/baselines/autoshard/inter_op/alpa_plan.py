"""From stages on equal submeshes to a plan that the pipeline runtime executes.

::

    stage       0          1                       replica 0    device 0 -> device 2
    devices    [0, 1]     [2, 3]         ──►       replica 1    device 1 -> device 3
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxpipe.baselines.autoshard.inter_op.profiled import ProfiledCosts, submesh_space
from jaxpipe.baselines.autoshard.inter_op.stage_search import assign_stages
from jaxpipe.baselines.autoshard.inter_op.submesh_stage import StagedModel
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, build

_MICROBATCHES: Final = (1, 2, 4)
"""Samples of a microbatch on each device that are tried, as `jaxpipe.search` tries them."""
_TOLERANCE: Final = 0.01
"""Bounds closer than this are one: thousands of stages differ by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpaPlan:
    """The plan of Alpa's inter-operator pass; times are predicted by its closed form.

    `staged` are the stages of the plan, on submeshes of equal size; `uneven` those on submeshes of
    any size with the same microbatches, if they are predicted to be faster. Here a stage's devices
    are one of each replica, so the latter are a prediction alone;
    `jaxpipe.baselines.gpt.staged_plan` has plans whose stages share unlike groups of devices.
    """

    plan: Plan
    staged: StagedModel
    uneven: StagedModel | None


def alpa_plan(task: Task) -> AlpaPlan:
    """Return the plan whose step Alpa's inter-operator pass predicts to be the shortest.

    The task may fix the number of stages and of replicas, that is the devices of a submesh.

    Raises:
        PlanError: no stages on equal submeshes divide the batch and fit the devices.
    """
    candidates = [
        (staged, microbatch)
        for size, microbatch in _sizes(task)
        if (staged := _assigned(task, microbatch=microbatch, equal=size)) is not None
    ]
    if not candidates:
        raise PlanError(
            "no plan fits the batch and the memory of equal submeshes: `stages` "
            f"{task.fixed.stages}, `replicas` {task.fixed.replicas}, `batch` {task.batch}, "
            f"{task.num_layers} layers, {len(task.cluster)} devices of cluster "
            f"{task.cluster.name!r}; leave out `stages` or `replicas`, or use larger devices"
        )
    staged, microbatch = min(candidates, key=lambda candidate: candidate[0].step_s)
    uneven = (
        _assigned(task, microbatch=microbatch, equal=None) if task.fixed.replicas is None else None
    )
    is_faster = uneven is not None and uneven.step_s < staged.step_s
    return AlpaPlan(
        plan=plan_of(staged, task, microbatch=microbatch),
        staged=staged,
        uneven=uneven if is_faster else None,
    )


def plan_of(staged: StagedModel, task: Task, *, microbatch: int) -> Plan:
    """Return the plan in which device r of each stage's submesh is part of replica r, under 1F1B.

    `microbatch` is in samples, over all devices of a submesh.

    Raises:
        PlanError: submeshes differ in size, or do not divide the microbatch.
    """
    sizes = [len(stage.devices) for stage in staged.stages]
    if len(set(sizes)) > 1:
        raise PlanError(
            "`submeshes` must be equal, since each replica takes one device of every stage; they "
            f"have {sizes} devices; search with `equal` submeshes"
        )
    if microbatch % sizes[0]:
        raise PlanError(
            f"`microbatch` ({microbatch}) must be a multiple of {sizes[0]}, the devices of a stage"
        )
    return build(
        task,
        # Rows are replicas, columns stages.
        np.array([list(stage.devices) for stage in staged.stages]).T,
        microbatch=microbatch // sizes[0],
        schedule=ScheduleKind.ONE_F_ONE_B,
        cut=staged.cut,
    )


def _sizes(task: Task) -> Iterator[tuple[int, int]]:
    """Yield sizes of equal submeshes, each with the microbatches that it divides."""
    # Larger submeshes would leave too few devices for the stages.
    most = len(task.cluster) // (task.fixed.stages or 1)
    for size in range(1, most + 1) if task.fixed.replicas is None else (task.fixed.replicas,):
        for microbatch in _MICROBATCHES:
            if size <= most and task.batch % (size * microbatch) == 0:
                yield size, size * microbatch


def _assigned(task: Task, *, microbatch: int, equal: int | None) -> StagedModel | None:
    num_microbatches = task.batch // microbatch
    try:
        return assign_stages(
            ProfiledCosts(task=task, microbatch=microbatch, num_microbatches=num_microbatches),
            submesh_space(task, microbatch=microbatch, equal=equal),
            num_layers=task.num_layers,
            num_microbatches=num_microbatches,
            num_stages=task.fixed.stages,
            tolerance=_TOLERANCE,
        )
    except PlanError:  # other sizes may fit
        return None
