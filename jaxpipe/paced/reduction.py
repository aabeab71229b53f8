"""The collectives of a rank in a paced step: their sizes, trees and messages."""

from dataclasses import dataclass
from functools import partial

from jaxpipe.collective import Collective
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Instruction, Op
from jaxpipe.simulate.engine.running_collectives import is_buffered
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.simulate.plan_step import Conditions, gathered_bytes, segment_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAllReduces:
    """The collectives of gradients and parameters of a plan: their bytes, along its sync trees.

    `segment_bytes` are the bytes of each segment's gradients without a tied embedding, which has
    `shared_bytes`; a message has `chunk_bytes` at most. Where replicas shard the optimizer, they
    gather the `gathered_bytes` of each segment's parameters after the update.
    """

    plan: Plan
    segment_bytes: tuple[float, ...]
    shared_bytes: float
    chunk_bytes: float
    gathered_bytes: tuple[float, ...] = ()

    def of_stage(self, *, replica: int, stage: int) -> tuple[float, ...]:
        """Return the bytes of each segment of a stage of a replica."""
        numbers = self.plan.segments_of(replica=replica, stage=stage)
        return tuple(self.segment_bytes[number] for number in numbers)

    def gathered_of_stage(self, *, replica: int, stage: int) -> tuple[float, ...]:
        """Return the bytes that are gathered of each segment of a stage; none if none are."""
        numbers = self.plan.segments_of(replica=replica, stage=stage)
        return tuple(self.gathered_bytes[number] for number in numbers if self.gathered_bytes)


def planned_all_reduces(plan: Plan, conditions: Conditions) -> PlannedAllReduces:
    """Return the all-reduces of the step `plan_step(plan, conditions)`."""
    profile, per_parameter = conditions.profile, conditions.gradient_bytes
    embed_bytes = float(profile.embed.num_gradients * per_parameter)
    # The tied table is a bucket of its own: stage 0 reduces it with the last stage.
    first, *others = segment_bytes(plan, profile, gradient_bytes=per_parameter)
    sizes = (first - embed_bytes * plan.shares_embedding, *others)
    return PlannedAllReduces(
        plan=plan,
        segment_bytes=tuple(map(float, sizes)),
        shared_bytes=embed_bytes,
        chunk_bytes=conditions.overheads.chunk_bytes,
        gathered_bytes=tuple(map(float, gathered_bytes(plan, conditions))),
    )


def collectives_of(job: StepModel, rank: int) -> dict[int, Collective]:
    """Return the collectives of which a rank is a member, by the tag of their reduction."""
    collectives: dict[int, Collective] = {}
    for reduction in _reductions(job, rank):
        for collective in job.meant_by(reduction).values():
            if any(rank in (transfer.source, transfer.destination) for transfer in collective):
                collectives[reduction_tag(reduction)] = collective
    return collectives


def gathered_tags(job: StepModel) -> frozenset[int]:
    """Return the tags of the reductions whose ranks must all join before messages to them leave."""
    return frozenset(
        reduction_tag(reduction)
        for rank in range(job.num_ranks)
        for reduction in _reductions(job, rank)
        if not any(map(partial(is_buffered, reduction.bucket), job.group(reduction)))
    )


def _reductions(job: StepModel, rank: int) -> set[Instruction]:
    number, replica = job.number(rank), job.replicas[rank]
    programs = (phase.of(replica)[number] for phase in job.phases)
    return {
        instruction
        for program in programs
        for instruction in program
        if instruction.op is Op.REDUCE
    }
