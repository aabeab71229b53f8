"""The all-reduces of a rank in a paced step: their sizes, trees and collectives."""

from dataclasses import dataclass

from jaxpipe.collective import Collective
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, Instruction, Op
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.simulate.plan_step import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAllReduces:
    """The gradient all-reduces of a plan: their bytes, along the sync trees of the plan.

    `stage_bytes` are the bytes of each stage's gradients without a tied embedding, which has
    `shared_bytes`; a message has `chunk_bytes` at most.
    """

    plan: Plan
    stage_bytes: tuple[float, ...]
    shared_bytes: float
    chunk_bytes: float

    def num_bytes(self, bucket: Bucket, *, stage: int) -> float:
        """Return the bytes of a bucket of a stage."""
        return self.stage_bytes[stage] if bucket is Bucket.STAGE else self.shared_bytes


def planned_all_reduces(plan: Plan, conditions: Conditions) -> PlannedAllReduces:
    """Return the all-reduces of the step `plan_step(plan, conditions)`."""
    profile, each = conditions.profile, conditions.gradient_bytes
    embed_bytes = float(profile.embed.parameters * each)
    is_shared = plan.tied and plan.num_stages > 1
    stage_bytes = (
        # The tied table is a bucket of its own: stage 0 reduces it with the last stage.
        profile.stage(plan.cut, stage).parameters * each
        - (embed_bytes if is_shared and not stage else 0)
        for stage in range(plan.num_stages)
    )
    return PlannedAllReduces(
        plan=plan,
        stage_bytes=tuple(map(float, stage_bytes)),
        shared_bytes=embed_bytes,
        chunk_bytes=conditions.overheads.chunk_bytes,
    )


def collectives_of(job: StepModel, rank: int) -> dict[int, Collective]:
    """Return the collectives of which a rank is a member, by the tag of their reduction."""
    found: dict[int, Collective] = {}
    for reduction in _reductions(job, rank):
        for collective in job.meant_by(reduction).values():
            if any(rank in (each.source, each.destination) for each in collective):
                found[reduction_tag(reduction)] = collective
    return found


def gathered_tags(job: StepModel) -> frozenset[int]:
    """Return the tags of the reductions whose ranks must all join before messages to them leave."""
    return frozenset(
        reduction_tag(each)
        # Ranks of one pipeline: those of other replicas have the same programs.
        for rank in range(job.num_pipeline_ranks)
        for each in _reductions(job, rank)
        if each.bucket is not Bucket.SCALARS
    )


def _reductions(job: StepModel, rank: int) -> set[Instruction]:
    number = rank % job.num_pipeline_ranks
    return {each for phase in job.phases for each in phase.schedule[number] if each.op is Op.REDUCE}
