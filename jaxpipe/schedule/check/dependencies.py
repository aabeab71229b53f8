"""Check that in each program every instruction follows those that it depends on."""

from collections.abc import Iterator, Mapping

from jaxpipe.schedule.dataflow import Value, ValueKind, inputs, output
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    describe,
    receive,
    refusal,
    update,
)
from jaxpipe.schedule.virtual_stages import count_stages


def check_order(schedule: Schedule) -> None:
    """Refuse a lowered schedule in which an instruction precedes one that it depends on.

    >>> from jaxpipe.schedule.instruction import backward, forward
    >>> check_order(((backward(0, 0), forward(0, 0)),))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: instructions follow their dependencies: stage 0, position 0, \
`backward 0` precedes `forward 0`; move it after that

    Raises:
        PlanError: the first such instruction.
    """
    num_stages = count_stages(schedule)
    for program in schedule:
        makers = {
            output(instruction): instruction for instruction in program if instruction.is_compute
        }
        done: set[Instruction] = set()
        for position, instruction in enumerate(program):
            for need in _needs(instruction, program, makers=makers, num_stages=num_stages):
                if need not in done:
                    raise refusal(
                        "instructions follow their dependencies",
                        instruction.stage,
                        position,
                        instruction,
                        f"precedes `{describe(need)}`; move it after that",
                    )
            done.add(instruction)


def _needs(
    instruction: Instruction,
    program: Program,
    *,
    makers: Mapping[Value, Instruction],
    num_stages: int,
) -> Iterator[Instruction]:
    stage, microbatch, peer = instruction.stage, instruction.microbatch, instruction.peer
    match instruction.op:
        case Op.FORWARD | Op.BACKWARD | Op.BACKWARD_INPUT | Op.BACKWARD_WEIGHT:
            for value in inputs(instruction, num_stages=num_stages):
                # What no compute of this program makes has to come in a message.
                at_home = makers.get(value)
                yield at_home or receive(stage, value.stage, value.microbatch)
        case Op.SEND:
            assert peer is not None, instruction
            assert microbatch is not None, instruction
            kind = ValueKind.ACTIVATION if peer > stage else ValueKind.GRADIENT
            yield makers[Value(kind, stage, microbatch)]
        case Op.REDUCE:
            yield from (earlier for earlier in program if _contributes(earlier, instruction))
        case Op.UPDATE:
            yield from (
                instruction for instruction in program if instruction.bucket is Bucket.SCALARS
            )
        case Op.GATHER:
            yield update(stage)
        case Op.RECEIVE:
            return


def _contributes(instruction: Instruction, reduction: Instruction) -> bool:
    """Return whether an instruction contributes to a reduction of the same program."""
    match reduction.bucket:
        case Bucket.STAGE:
            return instruction.is_compute and instruction.stage == reduction.stage
        case Bucket.SCALARS:
            # The scalars have the gradient norm: all other reductions precede them.
            return instruction.is_compute or (
                instruction.op is Op.REDUCE and instruction != reduction
            )
        case _:
            return instruction.is_compute
