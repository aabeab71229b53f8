"""Deadlock detection by symbolic execution of all programs."""

from jaxpipe.schedule.dataflow import Value, inputs, output
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    reduce,
    refusal,
    send,
)
from jaxpipe.schedule.virtual_stages import count_stages


def together(
    bucket: Bucket, *, stage: int, num_ranks: int, num_stages: int
) -> tuple[Instruction, ...]:
    """Return the reductions of one replica that take part in that of `bucket` at `stage`.

    >>> [each.stage for each in together(Bucket.TIED, stage=0, num_ranks=4, num_stages=8)]
    [0, 7]
    >>> [each.stage for each in together(Bucket.SCALARS, stage=0, num_ranks=4, num_stages=8)]
    [0, 1, 2, 3]
    """
    match bucket:
        case Bucket.STAGE:
            return (reduce(stage, bucket),)
        case Bucket.TIED:
            # A rank that holds both stages reduces them once, at the first.
            edges = (0,) if num_ranks == 1 else (0, num_stages - 1)
            return tuple(reduce(edge, bucket) for edge in edges)
        case Bucket.SCALARS:
            return tuple(reduce(rank, bucket) for rank in range(num_ranks))


def check_progress(schedule: Schedule) -> None:
    """Refuse a schedule that deadlocks.

    Sends do not block; a receive waits for its send, and a reduction for all ranks that take part.
    An instruction that can run stays able to run, so one execution, in any order, decides.

    >>> from jaxpipe.schedule.instruction import receive
    >>> check_progress(((receive(0, 1, 0), send(0, 1, 0)), (receive(1, 0, 0), send(1, 0, 0))))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: a schedule has no deadlock: stage 0, position 0, \
`receive 0 from stage 1` never runs; move it after what its other end waits for

    Raises:
        PlanError: the first instruction that never runs.
    """
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    positions = [0] * num_ranks
    reached: set[Instruction] = set()
    num_reached_before = -1
    # Until nothing changes: every sweep but the last advances a rank.
    while num_reached_before < len(reached):
        num_reached_before = len(reached)
        for rank, program in enumerate(schedule):
            positions[rank] = _advance(
                program,
                position=positions[rank],
                reached=reached,
                num_ranks=num_ranks,
                num_stages=num_stages,
            )
    for position, program in zip(positions, schedule, strict=True):
        if position < len(program):
            raise refusal(
                "a schedule has no deadlock",
                program[position].stage,
                position,
                program[position],
                "never runs; move it after what its other end waits for",
            )


def _advance(
    program: Program,
    *,
    position: int,
    reached: set[Instruction],
    num_ranks: int,
    num_stages: int,
) -> int:
    """Return the position at which the program blocks; adds to `reached`."""
    while position < len(program):
        # Reached counts before it can run: both ends of a reduction wait for each other.
        reached.add(program[position])
        other_ends = _other_ends(program[position], num_ranks=num_ranks, num_stages=num_stages)
        if not reached.issuperset(other_ends):
            break
        position += 1
    return position


def _other_ends(instruction: Instruction, *, num_ranks: int, num_stages: int) -> Program:
    """Return the instructions that must be reached before this one can run."""
    stage, peer, bucket = instruction.stage, instruction.peer, instruction.bucket
    if instruction.op is Op.RECEIVE:
        assert peer is not None, instruction
        assert instruction.microbatch is not None, instruction
        return (send(peer, stage, instruction.microbatch),)
    if instruction.op is Op.REDUCE:
        assert bucket is not None, instruction
        if bucket is Bucket.STAGE:
            return ()  # its other ends are in other replicas
        return together(bucket, stage=stage, num_ranks=num_ranks, num_stages=num_stages)
    return ()


def reach(compute: Schedule, *, unordered: int | None = None) -> tuple[int, ...]:
    """Return for each rank the position of the first compute that never runs.

    The computes of the `unordered` rank run as soon as they can: of a schedule that then runs, it
    is the order of that rank which is wrong.

    It is the length of the program if all of it runs. A compute that can run stays able to run, so
    one execution, in any order, decides.

    >>> from jaxpipe.schedule.instruction import backward, forward
    >>> reach(((forward(0, 0), backward(0, 0)), (backward(1, 0), forward(1, 0))))
    (1, 0)
    """
    num_stages = count_stages(compute)
    positions = [0] * len(compute)
    made: set[Value] = set()
    num_made_before = -1
    while num_made_before < len(made):
        num_made_before = len(made)
        for rank, program in enumerate(compute):
            if rank == unordered:
                ready = [i for i in program if made.issuperset(inputs(i, num_stages=num_stages))]
                made.update(map(output, ready))
                positions[rank] = len(ready)
                continue
            positions[rank] = _advance_compute(
                program, position=positions[rank], made=made, num_stages=num_stages
            )
    return tuple(positions)


def _advance_compute(program: Program, *, position: int, made: set[Value], num_stages: int) -> int:
    while position < len(program):
        # A result is there as soon as it is computed: messages come with the lowering.
        if not made.issuperset(inputs(program[position], num_stages=num_stages)):
            break
        made.add(output(program[position]))
        position += 1
    return position
