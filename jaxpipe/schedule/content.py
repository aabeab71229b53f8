"""Prove that a lowered schedule is one whole step: all of it, once, and nothing else."""

from collections.abc import Iterator

from jaxpipe.errors import PlanError
from jaxpipe.schedule.describe import describe, refusal
from jaxpipe.schedule.flow import destination_stage, source_stage
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    forward,
    receive,
    reduce,
    send,
    update,
)
from jaxpipe.schedule.progress import holders
from jaxpipe.schedule.size import check_size


def check_content(schedule: Schedule) -> None:
    """Refuse a schedule in which an instruction is repeated, missing, or out of place.

    >>> check_content(((forward(0, 0), forward(0, 0), reduce(0, Bucket.SCALARS)),))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: everything is done once: stage 0, position 1, `forward 0` comes \
again; remove it

    Raises:
        PlanError: the first instruction that comes twice, that is not part of the step, that is
            half of a message without the other half, or that is missing.
    """
    contents = _contents(schedule)
    for stage, program in enumerate(schedule):
        _check_members(stage, program, content=contents[stage])
    _check_messages(schedule)
    for stage, program in enumerate(schedule):
        _check_complete(stage, program, content=contents[stage])


def _contents(schedule: Schedule) -> Schedule:
    """Return what each stage has to do, in no particular order."""
    instructions = [instruction for program in schedule for instruction in program]
    num_microbatches = 1 + max(
        (each.microbatch for each in instructions if each.microbatch is not None), default=-1
    )
    num_stages = len(schedule)
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    trains = any(each.op in (Op.BACKWARD, Op.UPDATE) for each in instructions)
    gradients = {each.bucket for each in instructions if each.bucket is not None and trains}
    return tuple(
        (
            *_pipeline_content(
                stage, num_stages=num_stages, num_microbatches=num_microbatches, trains=trains
            ),
            *(
                reduce(stage, bucket)
                for bucket in Bucket
                if bucket in gradients | {Bucket.SCALARS}
                and stage in holders(bucket, stage=stage, num_stages=num_stages)
            ),
            *((update(stage),) if trains else ()),
        )
        for stage in range(num_stages)
    )


def _pipeline_content(
    stage: int, *, num_stages: int, num_microbatches: int, trains: bool
) -> Iterator[Instruction]:
    for microbatch in range(num_microbatches):
        both = (forward(stage, microbatch), backward(stage, microbatch))
        for compute in both if trains else both[:1]:
            source = source_stage(compute, num_stages=num_stages)
            destination = destination_stage(compute, num_stages=num_stages)
            yield compute
            if source is not None:
                yield receive(stage, source, microbatch)
            if destination is not None:
                yield send(stage, destination, microbatch)


def _check_members(stage: int, program: Program, *, content: Program) -> None:
    members = frozenset(content)
    seen: set[Instruction] = set()
    for position, instruction in enumerate(program):
        if instruction in seen:
            raise refusal(
                "everything is done once", stage, position, instruction, "comes again; remove it"
            )
        if instruction not in members:
            raise refusal(
                "a program does what its stage has to",
                stage,
                position,
                instruction,
                "is not part of that; remove it",
            )
        seen.add(instruction)


def _check_messages(schedule: Schedule) -> None:
    programs = [frozenset(program) for program in schedule]
    for stage, program in enumerate(schedule):
        for position, instruction in enumerate(program):
            other = _other_end(instruction)
            if other is not None and other not in programs[other.stage]:
                raise refusal(
                    f"every {instruction.op} meets one {other.op}",
                    stage,
                    position,
                    instruction,
                    f"meets none; add `{describe(other)}` to stage {other.stage}",
                )


def _other_end(instruction: Instruction) -> Instruction | None:
    stage, peer, microbatch = instruction.stage, instruction.peer, instruction.microbatch
    if peer is None or microbatch is None:
        return None
    other = receive if instruction.op is Op.SEND else send
    return other(peer, stage, microbatch)


def _check_complete(stage: int, program: Program, *, content: Program) -> None:
    present = frozenset(program)
    for instruction in content:
        if instruction not in present:
            raise PlanError(
                f"a program does all that its stage has to: stage {stage} lacks "
                f"`{describe(instruction)}`; add it"
            )
