"""Prove that in each program everything stands behind what it needs."""

from collections.abc import Iterator

from jaxpipe.schedule.describe import describe, refusal
from jaxpipe.schedule.flow import inputs
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
)


def check_order(schedule: Schedule) -> None:
    """Refuse a lowered schedule in which an instruction stands before what it needs.

    >>> check_order(((backward(0, 0), forward(0, 0)),))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: everything follows what it needs: stage 0, position 0, `backward 0` \
comes before `forward 0`; move it behind

    Raises:
        PlanError: the first such instruction.
    """
    for stage, program in enumerate(schedule):
        done: set[Instruction] = set()
        for position, instruction in enumerate(program):
            for need in _needs(instruction, program, num_stages=len(schedule)):
                if need not in done:
                    raise refusal(
                        "everything follows what it needs",
                        stage,
                        position,
                        instruction,
                        f"comes before `{describe(need)}`; move it behind",
                    )
            done.add(instruction)


def _needs(instruction: Instruction, program: Program, *, num_stages: int) -> Iterator[Instruction]:
    stage, microbatch, peer = instruction.stage, instruction.microbatch, instruction.peer
    match instruction.op:
        case Op.FORWARD | Op.BACKWARD:
            yield from _compute_needs(instruction, num_stages=num_stages)
        case Op.SEND:
            assert peer is not None, instruction
            assert microbatch is not None, instruction
            yield forward(stage, microbatch) if peer > stage else backward(stage, microbatch)
        case Op.RECEIVE:
            return
        case Op.REDUCE:
            yield from (each for each in program if each.is_compute)
            if instruction.bucket is Bucket.SCALARS:
                yield from (
                    each for each in program if each.op is Op.REDUCE and each != instruction
                )
        case Op.UPDATE:
            yield reduce(stage, Bucket.SCALARS)


def _compute_needs(compute: Instruction, *, num_stages: int) -> Iterator[Instruction]:
    assert compute.microbatch is not None, compute
    for source in inputs(compute, num_stages=num_stages):
        if source.stage == compute.stage:
            yield source
        else:
            yield receive(compute.stage, source.stage, compute.microbatch)
