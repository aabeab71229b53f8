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
    together = instruction.bucket in (Bucket.SHARED, Bucket.SCALARS)
    return instruction.bucket if together and instruction.bucket else instruction


def _needs(user: Instruction, schedule: Schedule) -> list[Instruction]:
    return [
        each
        for program in schedule
        for each in program
        if _node(each) != _node(user) and _precedes(each, user)
    ]


def _precedes(each: Instruction, user: Instruction) -> bool:
    if (each.op, user.op) == (Op.SEND, Op.RECEIVE):
        message = (each.stage, each.peer, each.microbatch)
        return message == (user.peer, user.stage, user.microbatch)
    rule = _WITHIN_A_STAGE.get((each.op, user.op))
    return rule is not None and each.stage == user.stage and rule(each, user)


def _same_microbatch(each: Instruction, user: Instruction) -> bool:
    return each.microbatch == user.microbatch


def _from_before(message: Instruction) -> bool:
    return message.peer == message.stage - 1


_WITHIN_A_STAGE: dict[tuple[Op, Op], Callable[[Instruction, Instruction], bool]] = {
    (Op.FORWARD, Op.BACKWARD): _same_microbatch,
    (Op.RECEIVE, Op.FORWARD): lambda a, b: _same_microbatch(a, b) and _from_before(a),
    (Op.RECEIVE, Op.BACKWARD): lambda a, b: _same_microbatch(a, b) and not _from_before(a),
    (Op.FORWARD, Op.SEND): lambda a, b: _same_microbatch(a, b) and not _from_before(b),
    (Op.BACKWARD, Op.SEND): lambda a, b: _same_microbatch(a, b) and _from_before(b),
    (Op.FORWARD, Op.REDUCE): lambda _each, _user: True,
    (Op.BACKWARD, Op.REDUCE): lambda _each, _user: True,
    (Op.REDUCE, Op.REDUCE): lambda _, b: b.bucket is Bucket.SCALARS,
    (Op.REDUCE, Op.UPDATE): lambda a, _: a.bucket is Bucket.SCALARS,
}
