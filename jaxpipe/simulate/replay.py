"""Replay of a measured step: its plan, simulated with the measured seconds of its computes.

::

    plan + links of the cluster ──┐
                                  ├──► job ──► simulated trace, to lay over the measured one
    measured trace: median of ────┘
    each rank's computes

The remaining difference between the two traces is not compute: links that differ from the cluster
file, and the time of the host between instructions.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import TypeAlias

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.schedule import Op
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.simulate.plan_step import Conditions, plan_step
from jaxpipe.trace import Lane, Trace

_Seconds: TypeAlias = Mapping[tuple[int, int, str], float]
"""The median seconds by rank, stage and operation."""


def replay_step(plan: Plan, conditions: Conditions, measured: Trace) -> StepModel:
    """Return a step of the plan with the median measured seconds of its computes and updates.

    Only sizes are taken from the profile in `conditions`: parameters and activations.

    Raises:
        PlanError: the trace is of another plan: computes of a stage are missing.
    """
    took_s = _medians(measured)
    slots = [
        (plan.rank(replica=replica, stage=stage), stage)
        for replica, pipeline in enumerate(plan.pipelines)
        for stage in range(pipeline.num_stages)
    ]
    weights_s = [took_s.get((*slot, Op.BACKWARD_WEIGHT), 0.0) for slot in slots]
    updates_s = [took_s.get((*slot, Op.UPDATE), 0.0) for slot in slots]
    return replace(
        plan_step(plan, conditions),
        forward_s=tuple(_seconds(took_s, slot, Op.FORWARD) for slot in slots),
        backward_s=tuple(_backward_s(took_s, slot) for slot in slots),
        # Only if every stage has split its backward: 0 s is no duration, None means half.
        backward_weight_s=tuple(weights_s) if all(weights_s) else None,
        backward_input_s=None,
        update_s=tuple(updates_s) if any(updates_s) else None,
    )


def _backward_s(took_s: _Seconds, slot: tuple[int, int]) -> float:
    """Return the seconds of a whole backward, or of both parts of a split one."""
    if (*slot, Op.BACKWARD) in took_s:
        return took_s[*slot, Op.BACKWARD]
    weight_s = _seconds(took_s, slot, Op.BACKWARD_WEIGHT)
    return _seconds(took_s, slot, Op.BACKWARD_INPUT) + weight_s


def _seconds(took_s: _Seconds, slot: tuple[int, int], op: Op) -> float:
    rank, stage = slot
    if (rank, stage, op) not in took_s:
        raise PlanError(
            f"the trace must be of the same plan: its rank {rank} has no `{op}` of stage {stage}; "
            "give a run and its own configuration"
        )
    return took_s[rank, stage, op]


def _medians(trace: Trace) -> _Seconds:
    took_s: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for span in trace.spans:
        if span.lane in (Lane.COMPUTE, Lane.UPDATE):
            took_s[span.rank, span.stage, span.name].append(span.end_s - span.start_s)
    # A pause of the host in one step does not count.
    return {key: median(each) for key, each in took_s.items()}
