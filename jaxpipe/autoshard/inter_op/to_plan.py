"""From stages on equal submeshes to a plan that the pipeline runtime executes."""

import numpy as np

from jaxpipe.autoshard.inter_op.stage import StagedModel
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.plan.decide import Task, build
from jaxpipe.schedule import ScheduleKind


def plan_of(staged: StagedModel, task: Task, *, microbatch: int) -> Plan:
    """Return the plan in which device r of each stage's submesh is part of replica r, under 1F1B.

    `microbatch` is in samples, over all devices of a submesh.

    Raises:
        PlanError: submeshes differ in size, and the runtime gives every stage as many devices; or
            they do not divide the microbatch.
    """
    sizes = [len(stage.devices) for stage in staged.stages]
    if len(set(sizes)) > 1:
        raise PlanError(
            f"the pipeline runtime gives every stage as many devices: the submeshes have {sizes}; "
            "search with `equal` submeshes"
        )
    if microbatch % sizes[0]:
        raise PlanError(
            f"devices of a stage take equal parts: `microbatch` is {microbatch} for {sizes[0]} "
            "devices; make it a multiple"
        )
    return build(
        task,
        np.array([list(stage.devices) for stage in staged.stages]).T,
        microbatch=microbatch // sizes[0],
        schedule=ScheduleKind.ONE_F_ONE_B,
        cut=staged.cut,
    )
