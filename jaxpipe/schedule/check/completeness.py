"""Check that a lowered schedule is one whole step: each instruction once, and no others."""

from collections.abc import Iterable, Iterator

from jaxpipe.errors import PlanError
from jaxpipe.schedule.dataflow import message_ends
from jaxpipe.schedule.deadlock import together
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    backward_input,
    backward_weight,
    describe,
    forward,
    gather,
    receive,
    reduce,
    refusal,
    send,
    update,
)
from jaxpipe.schedule.virtual_stages import check_size, count_stages, holder, stages_held


def check_content(schedule: Schedule) -> None:
    """Refuse a schedule in which an instruction is repeated, missing, or out of place.

    >>> check_content(((forward(0, 0), forward(0, 0), reduce(0, Bucket.SCALARS)),))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: every instruction occurs once: stage 0, position 1, `forward 0` \
occurs again; remove it

    Raises:
        PlanError: the first instruction that is repeated, that is not part of the step, that is a
            send without a receive or the reverse, or that is missing.
    """
    contents = _contents(schedule)
    for rank, program in enumerate(schedule):
        _check_members(rank, program, content=contents[rank], num_ranks=len(schedule))
    _check_messages(schedule)
    for program, content in zip(schedule, contents, strict=True):
        _check_complete(program, content=content)


def _contents(schedule: Schedule) -> Schedule:
    """Return the instructions of each rank, in no particular order."""
    instructions = [instruction for program in schedule for instruction in program]
    num_microbatches = _num_microbatches(instructions)
    check_size(num_stages=len(schedule), num_microbatches=num_microbatches)
    trains = any(
        instruction.is_backward or instruction.op is Op.UPDATE for instruction in instructions
    )
    # A schedule does not say whether there are replicas and a tied embedding; its buckets do, as
    # its gathers do whether the optimizer is sharded.
    gradients = {
        instruction.bucket
        for instruction in instructions
        if instruction.bucket is not None and trains
    }
    buckets = tuple(bucket for bucket in Bucket if bucket in gradients | {Bucket.SCALARS})
    gathers = any(instruction.op is Op.GATHER for instruction in instructions)
    num_stages = count_stages(schedule)
    return tuple(
        tuple(
            instruction
            for stage in stages_held(rank, num_ranks=len(schedule), num_stages=num_stages)
            for instruction in (
                *_pipeline_content(
                    _computes(program, stage, num_microbatches=num_microbatches, trains=trains),
                    num_ranks=len(schedule),
                    num_stages=num_stages,
                ),
                *_stage_content(program, stage, is_reduced=Bucket.STAGE in buckets),
                *_end_content(
                    stage, buckets, num_ranks=len(schedule), num_stages=num_stages, trains=trains
                ),
                *((gather(stage),) if gathers else ()),
            )
        )
        for rank, program in enumerate(schedule)
    )


def _num_microbatches(instructions: Iterable[Instruction]) -> int:
    numbers = (instruction.microbatch for instruction in instructions)
    return 1 + max((number for number in numbers if number is not None), default=-1)


def _computes(
    program: Program, stage: int, *, num_microbatches: int, trains: bool
) -> Iterator[Instruction]:
    """Return the computes of a stage; a backward is split if the program has a half of it."""
    present = frozenset(program)
    for microbatch in range(num_microbatches):
        yield forward(stage, microbatch)
        full = backward(stage, microbatch)
        halves = (backward_input(stage, microbatch), backward_weight(stage, microbatch))
        # If both are present, the whole one counts and the halves are refused as extra.
        is_split = full not in present and not present.isdisjoint(halves)
        if trains:
            yield from halves if is_split else (full,)


def _pipeline_content(
    computes: Iterable[Instruction], *, num_ranks: int, num_stages: int
) -> Iterator[Instruction]:
    for compute in computes:
        source, destination = message_ends(compute, num_ranks=num_ranks, num_stages=num_stages)
        stage, microbatch = compute.stage, compute.microbatch
        assert microbatch is not None, compute
        yield compute
        if source is not None:
            yield receive(stage, source, microbatch)
        if destination is not None:
            yield send(stage, destination, microbatch)


def _stage_content(program: Program, stage: int, *, is_reduced: bool) -> Program:
    """Return the reductions of a stage's segments: those that the program has, but one at least."""
    if not is_reduced:
        return ()
    parts = (
        instruction
        for instruction in program
        if instruction.bucket is Bucket.STAGE and instruction.stage == stage
    )
    return tuple(dict.fromkeys(parts)) or (reduce(stage, Bucket.STAGE),)


def _end_content(
    stage: int, buckets: Iterable[Bucket], *, num_ranks: int, num_stages: int, trains: bool
) -> Iterator[Instruction]:
    for bucket in buckets:
        if bucket is Bucket.STAGE:
            continue
        reduction = reduce(stage, bucket)
        if reduction in together(bucket, stage=stage, num_ranks=num_ranks, num_stages=num_stages):
            yield reduction
    if trains:
        yield update(stage)


def _check_members(rank: int, program: Program, *, content: Program, num_ranks: int) -> None:
    members = frozenset(content)
    seen: set[Instruction] = set()
    for position, instruction in enumerate(program):
        # An instruction of another rank's stage is reported where it stands.
        is_held = holder(instruction.stage, num_ranks=num_ranks) == rank
        stage = instruction.stage if is_held else rank
        if instruction in seen:
            raise refusal(
                "every instruction occurs once",
                stage,
                position,
                instruction,
                "occurs again; remove it",
            )
        if instruction not in members:
            raise refusal(
                "a program belongs to its stages",
                stage,
                position,
                instruction,
                "does not belong to this one; remove it",
            )
        seen.add(instruction)


def _check_messages(schedule: Schedule) -> None:
    present = frozenset(instruction for program in schedule for instruction in program)
    for program in schedule:
        for position, instruction in enumerate(program):
            other = _other_end(instruction)
            if other is not None and other not in present:
                raise refusal(
                    f"every {instruction.op} has its {other.op}",
                    instruction.stage,
                    position,
                    instruction,
                    f"has none; add `{describe(other)}` to stage {other.stage}",
                )


def _other_end(instruction: Instruction) -> Instruction | None:
    stage, peer, microbatch = instruction.stage, instruction.peer, instruction.microbatch
    if peer is None or microbatch is None:
        return None
    other = receive if instruction.op is Op.SEND else send
    return other(peer, stage, microbatch)


def _check_complete(program: Program, *, content: Program) -> None:
    present = frozenset(program)
    for instruction in content:
        if instruction not in present:
            raise PlanError(
                f"stage {instruction.stage} lacks `{describe(instruction)}`: a program must be "
                "complete; add it"
            )
