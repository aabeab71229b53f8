"""Prove that programs which wait for each other all come to their end."""

from jaxpipe.schedule.describe import refusal
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    reduce,
    send,
)


def holders(bucket: Bucket, *, stage: int, num_stages: int) -> tuple[int, ...]:
    """Return the stages of one replica that sum `bucket` together with `stage`.

    >>> holders(Bucket.SHARED, stage=0, num_stages=4), holders(Bucket.STAGE, stage=2, num_stages=4)
    ((0, 3), (2,))
    """
    match bucket:
        case Bucket.STAGE:
            return (stage,)
        case Bucket.SHARED:
            return (0, num_stages - 1)
        case Bucket.SCALARS:
            return tuple(range(num_stages))


def check_progress(schedule: Schedule) -> None:
    """Refuse a schedule that deadlocks.

    Sends do not block; a receive waits for its send, and a reduction until all its holders have
    come to it. Nothing that has become possible is ever taken back, so one execution, in any order,
    decides.

    >>> from jaxpipe.schedule.instruction import receive
    >>> check_progress(((receive(0, 1, 0), send(0, 1, 0)), (receive(1, 0, 0), send(1, 0, 0))))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: a schedule comes to its end: stage 0, position 0, \
`receive 0 from stage 1` waits for ever; move it behind what its other end waits for

    Raises:
        PlanError: the first instruction that waits for ever.
    """
    num_stages = len(schedule)
    positions = [0] * num_stages
    reached: set[Instruction] = set()
    num_reached_before = -1
    while num_reached_before < len(reached):
        num_reached_before = len(reached)
        for stage, program in enumerate(schedule):
            positions[stage] = _advance(
                program, position=positions[stage], reached=reached, num_stages=num_stages
            )
    for stage, program in enumerate(schedule):
        if positions[stage] < len(program):
            raise refusal(
                "a schedule comes to its end",
                stage,
                positions[stage],
                program[positions[stage]],
                "waits for ever; move it behind what its other end waits for",
            )


def _advance(program: Program, *, position: int, reached: set[Instruction], num_stages: int) -> int:
    """Return how far the program comes, given and adding to what the programs have reached."""
    while position < len(program):
        reached.add(program[position])
        if not reached.issuperset(_other_ends(program[position], num_stages=num_stages)):
            break
        position += 1
    return position


def _other_ends(instruction: Instruction, *, num_stages: int) -> Program:
    """Return the instructions that have to be reached before this one can be done."""
    stage, peer, bucket = instruction.stage, instruction.peer, instruction.bucket
    if instruction.op is Op.RECEIVE:
        assert peer is not None, instruction
        assert instruction.microbatch is not None, instruction
        return (send(peer, stage, instruction.microbatch),)
    if instruction.op is Op.REDUCE:
        assert bucket is not None, instruction
        together = holders(bucket, stage=stage, num_stages=num_stages)
        return tuple(reduce(holder, bucket) for holder in together)
    return ()
