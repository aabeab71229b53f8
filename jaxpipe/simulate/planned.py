"""Any plan as a job: what the planner's objective `time` simulates, and what a run should take.

::

    plan + profile ──► seconds of each rank's forward and backward
    plan + cluster ──► messages between stages, and sums along the plan's own sync trees
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.schedule import Bucket, SyncTree
from jaxpipe.simulate.collective import Collective, tree_sum
from jaxpipe.simulate.durations import is_remote
from jaxpipe.simulate.events import simulate
from jaxpipe.simulate.job import Job, Phase
from jaxpipe.simulate.summed import all_reduce_messages
from jaxpipe.simulate.wire import Wire
from jaxpipe.trace import Trace
from topo import Cluster

_SCALARS_BYTES = 64
"""Loss, norm and counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What software and hardware make of a plan.

    `messages` and `gradients` say how bytes use the links; of shared NICs `nic_efficiency` is
    usable; gradients travel in chunks of `chunk_bytes`, which follow each other. A stage whose
    messages all stay inside its host takes `local_factor` times the seconds of the profile.
    """

    messages: Wire = field(default_factory=Wire)
    gradients: Wire = field(default_factory=Wire)
    nic_efficiency: float = 1.0
    chunk_bytes: float = inf
    local_factor: float = 1.0


IDEAL = Overheads()
"""Links deliver what the cluster says, and nothing besides costs time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a plan is simulated with: cluster, costs of the model, bytes of a parameter's gradient.

    `slow[device]` is how many times the profile's seconds the device takes.
    """

    cluster: Cluster
    profile: Profile
    slow: np.ndarray
    gradient_bytes: int
    overheads: Overheads = IDEAL


def plan_job(plan: Plan, conditions: Conditions) -> Job:
    """Return one step of a plan.

    A tied embedding is summed with that of the last stage instead of with the first stage's own
    gradients. The optimizer takes no time.

    Raises:
        PlanError: the plan is not one for the cluster.
    """
    profile = conditions.profile.scaled(microbatch=plan.microbatch)
    parts = [profile.stage(plan.cut, stage) for stage in range(plan.num_stages)]
    factors = _factors(plan, conditions)
    return Job(
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
        activation_bytes=profile.activation_bytes,
        collectives=_sums(plan, conditions, parts),
        messages=conditions.overheads.messages,
        gradients=conditions.overheads.gradients,
        nic_efficiency=conditions.overheads.nic_efficiency,
    )


def planned_step_s(plan: Plan, conditions: Conditions) -> float:
    """Return the simulated seconds of one step of a plan, every microbatch of it."""
    return end_s(simulate(plan_job(plan, conditions)))


def end_s(trace: Trace) -> float:
    """Return when the last span ends."""
    return max(span.end_s for span in trace.spans)


def _factors(plan: Plan, conditions: Conditions) -> list[list[float]]:
    """Return, for each replica, how many times the profile's seconds each stage takes."""
    local = conditions.overheads.local_factor
    holders = [
        tuple(row[stage % plan.num_pipeline_ranks] for stage in range(plan.num_stages))
        for row in plan.placement
    ]
    return [
        [
            float(conditions.slow[device])
            * (1.0 if is_remote(conditions.cluster, devices, stage) else local)
            for stage, device in enumerate(devices)
        ]
        for devices in holders
    ]


def _sums(
    plan: Plan, conditions: Conditions, parts: list[Part]
) -> dict[Bucket, tuple[Collective, ...]]:
    shares = plan.tied and plan.num_stages > 1
    shared = conditions.profile.embed.parameters if shares else 0
    own = [part.parameters - (shared if stage == 0 else 0) for stage, part in enumerate(parts)]

    def summed(tree: SyncTree, parameters: int) -> Collective:
        num_bytes = parameters * conditions.gradient_bytes
        return all_reduce_messages(
            plan.all_reduce,
            tree,
            num_bytes=num_bytes,
            chunk_bytes=conditions.overheads.chunk_bytes,
        )

    sums: dict[Bucket, tuple[Collective, ...]] = {
        Bucket.SCALARS: (tree_sum(plan.sync_all, _SCALARS_BYTES, num_chunks=1),)
    }
    if plan.num_replicas > 1:
        sums[Bucket.STAGE] = tuple(
            summed(tree, parameters) for tree, parameters in zip(plan.sync, own, strict=True)
        )
    if shares:
        sums[Bucket.SHARED] = (summed(plan.sync_shared, shared),)
    return sums
