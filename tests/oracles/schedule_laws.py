"""An oracle for order and progress: a schedule runs exactly if its precedences have no cycle.

It knows nothing of programs that advance: it draws every precedence as an edge and asks graphlib.
Reductions over several stages are one node.
"""

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from jaxpipe.schedule import Bucket, Instruction, Op, Schedule


def is_runnable(schedule: Schedule) -> bool:
    """Say whether a schedule with the right content can run to its end."""
    graph: TopologicalSorter[Instruction | Bucket] = TopologicalSorter()
    for program in schedule:
        for before, after in pairwise(program):
            graph.add(_node(after), _node(before))
    for each in (each for program in schedule for each in program):
        for need in _needs(each, schedule):
            graph.add(_node(each), _node(need))
    try:
        graph.prepare()
    except CycleError:
        return False
    return True


def _node(instruction: Instruction) -> Instruction | Bucket:
    together = instruction.bucket in (Bucket.TIED, Bucket.SCALARS)
    return instruction.bucket if together and instruction.bucket else instruction


def _needs(user: Instruction, schedule: Schedule) -> list[Instruction]:
    return [
        each
        for program in schedule
        for each in program
        if _node(each) != _node(user) and _precedes(each, user, num_ranks=len(schedule))
    ]


def _precedes(each: Instruction, user: Instruction, *, num_ranks: int) -> bool:
    if (each.op, user.op) == (Op.SEND, Op.RECEIVE):
        message = (each.stage, each.peer, each.microbatch)
        return message == (user.peer, user.stage, user.microbatch)
    if each.stage % num_ranks != user.stage % num_ranks:
        return False
    if user.op in (Op.REDUCE, Op.UPDATE):
        return _precedes_the_end(each, user)
    if each.microbatch != user.microbatch:
        return False
    rule = _FOR_A_MICROBATCH.get((each.op, user.op))
    return rule is not None and rule(each, user)


def _precedes_the_end(each: Instruction, user: Instruction) -> bool:
    """Say whether an instruction precedes a reduction or an update of the same rank."""
    if user.op is Op.UPDATE:
        return each.bucket is Bucket.SCALARS
    if each.op is Op.REDUCE:
        return user.bucket is Bucket.SCALARS
    return each.is_compute and (user.bucket is not Bucket.STAGE or each.stage == user.stage)


_Rule = Callable[[Instruction, Instruction], bool]


def _own(each: Instruction, user: Instruction) -> bool:
    return each.stage == user.stage


def _of_the_stage_before(each: Instruction, user: Instruction) -> bool:
    return each.stage == user.stage - 1


def _of_the_stage_behind(each: Instruction, user: Instruction) -> bool:
    return each.stage == user.stage + 1


def _came_down(each: Instruction, user: Instruction) -> bool:
    return _own(each, user) and each.peer == each.stage - 1


def _came_up(each: Instruction, user: Instruction) -> bool:
    return _own(each, user) and each.peer == each.stage + 1


def _goes_down(each: Instruction, user: Instruction) -> bool:
    return _own(each, user) and user.peer == user.stage + 1


def _goes_up(each: Instruction, user: Instruction) -> bool:
    return _own(each, user) and user.peer == user.stage - 1


_GRADIENTS = (Op.BACKWARD, Op.BACKWARD_INPUT)

_FOR_A_MICROBATCH: dict[tuple[Op, Op], _Rule] = {
    (Op.FORWARD, Op.FORWARD): _of_the_stage_before,
    (Op.RECEIVE, Op.FORWARD): _came_down,
    (Op.FORWARD, Op.SEND): _goes_down,
    (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT): _own,
    **{(Op.FORWARD, gradient): _own for gradient in _GRADIENTS},
    **{(Op.RECEIVE, gradient): _came_up for gradient in _GRADIENTS},
    **{(gradient, Op.SEND): _goes_up for gradient in _GRADIENTS},
    **{(above, below): _of_the_stage_behind for above in _GRADIENTS for below in _GRADIENTS},
}
