"""Say an instruction in words, for errors and listings."""

from jaxpipe.errors import PlanError
from jaxpipe.schedule.instruction import Instruction, Op

_JOINING = {Op.SEND: "to", Op.RECEIVE: "from"}


def describe(instruction: Instruction) -> str:
    """Return what the instruction does, without the stage that does it.

    >>> from jaxpipe.schedule.instruction import receive
    >>> describe(receive(2, 1, 7))
    'receive 7 from stage 1'
    """
    words = [instruction.op.value]
    if instruction.microbatch is not None:
        words.append(str(instruction.microbatch))
    if instruction.peer is not None:
        words.append(f"{_JOINING.get(instruction.op, 'with')} stage {instruction.peer}")
    if instruction.bucket is not None:
        words.append(instruction.bucket.value)
    return " ".join(words)


def refusal(
    rule: str, stage: int, position: int, instruction: Instruction, fault: str
) -> PlanError:
    """Return the error that says which instruction of which stage breaks `rule`, and how."""
    return PlanError(
        f"{rule}: stage {stage}, position {position}, `{describe(instruction)}` {fault}"
    )
