"""A plan as a simulated step: the planner's objective `time`, and the expected time of a run.

::

    plan + profile ──► seconds of each rank's forward, backward and update
    plan + cluster ──► messages between stages, and all-reduces along the plan's sync trees
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from jaxpipe.network import MessageCosts
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.simulate.engine.simulator import simulate
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.simulate.gradient_transfers import gradient_collectives
from jaxpipe.simulate.published.compute_times import is_remote
from jaxpipe.topo import Cluster
from jaxpipe.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Overheads of software and hardware.

    `messages` and `gradients` are the costs of activations and of gradients on links; of the
    bandwidth of shared NICs `nic_efficiency` is usable; gradients are sent in chunks of
    `chunk_bytes`. A stage whose messages all stay inside its host takes `local_factor` times the
    seconds of the profile. With `blocking` no rank computes during a message between stages.
    """

    messages: MessageCosts = field(default_factory=MessageCosts)
    gradients: MessageCosts = field(default_factory=MessageCosts)
    nic_efficiency: float = 1.0
    chunk_bytes: float = inf
    local_factor: float = 1.0
    blocking: bool = False


IDEAL = Overheads()
"""No overheads: links perform as the cluster file states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a simulation: cluster, profile, and bytes of a parameter's gradient.

    `slow[device]` is the factor by which the device is slower than the profiled one.
    """

    cluster: Cluster
    profile: Profile
    slow: np.ndarray
    gradient_bytes: int
    overheads: Overheads = IDEAL


def plan_step(plan: Plan, conditions: Conditions) -> StepModel:
    """Return one step of a plan.

    Raises:
        PlanError: the plan does not fit the cluster.
    """
    profile = conditions.profile.scaled(microbatch=plan.microbatch)
    parts = [profile.stage(plan.cut, stage) for stage in range(plan.num_stages)]
    factors = _factors(plan, conditions)
    return StepModel(
        cluster=conditions.cluster,
        placement=plan.placement,
        phases=(Phase(schedule=plan.train_schedule()),),
        num_chunks=plan.num_chunks,
        forward_s=tuple(
            part.forward_s * f for row in factors for part, f in zip(parts, row, strict=True)
        ),
        backward_s=tuple(
            part.backward_s * f for row in factors for part, f in zip(parts, row, strict=True)
        ),
        backward_weight_s=_weights_s(parts, factors),
        update_s=_updates_s(plan, conditions),
        activation_bytes=profile.activation_bytes,
        collectives=gradient_collectives(
            plan,
            stage_bytes=[part.parameters * conditions.gradient_bytes for part in parts],
            embed_bytes=profile.embed.parameters * conditions.gradient_bytes,
            chunk_bytes=conditions.overheads.chunk_bytes,
        ),
        messages=conditions.overheads.messages,
        gradients=conditions.overheads.gradients,
        nic_efficiency=conditions.overheads.nic_efficiency,
        blocking=conditions.overheads.blocking,
    )


def _weights_s(parts: Sequence[Part], factors: list[list[float]]) -> tuple[float, ...] | None:
    """Return the seconds of each backward-weight; None, which means half, if not profiled."""
    if all(part.backward_weight_s is None for part in parts):
        return None
    return tuple(part.later_s * f for row in factors for part, f in zip(parts, row, strict=True))


def _updates_s(plan: Plan, conditions: Conditions) -> tuple[float, ...] | None:
    """Return the seconds of each stage's optimizer; None if the profile has none."""
    profile = conditions.profile  # not scaled: an update takes as long for any microbatch
    each_s = [profile.update_s(plan.cut, s, tied=plan.tied) for s in range(plan.num_stages)]
    if not any(each_s):
        return None
    return tuple(
        update_s * float(conditions.slow[device])
        for row in plan.placement
        for update_s, device in zip(each_s, _holders(plan, row), strict=True)
    )


def plan_step_s(plan: Plan, conditions: Conditions) -> float:
    """Return the simulated seconds of one step of a plan, every microbatch of it."""
    return end_s(simulate(plan_step(plan, conditions)))


def end_s(trace: Trace) -> float:
    """Return when the last span ends."""
    return max(span.end_s for span in trace.spans)


def _factors(plan: Plan, conditions: Conditions) -> list[list[float]]:
    """Return, for each replica, the factors on the profile's seconds of each stage."""
    local = conditions.overheads.local_factor
    holders = [_holders(plan, row) for row in plan.placement]
    return [
        [
            float(conditions.slow[device])
            * (1.0 if is_remote(conditions.cluster, devices, stage) else local)
            for stage, device in enumerate(devices)
        ]
        for devices in holders
    ]


def _holders(plan: Plan, devices: tuple[int, ...]) -> tuple[int, ...]:
    """Return the device of each stage of a replica."""
    return tuple(devices[stage % plan.num_pipeline_ranks] for stage in range(plan.num_stages))
