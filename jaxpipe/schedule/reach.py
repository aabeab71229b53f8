"""How far programs of computes come when they wait for each other's results."""

from jaxpipe.schedule.flow import Value, inputs, output
from jaxpipe.schedule.holding import count_stages
from jaxpipe.schedule.instruction import Program, Schedule


def reach(compute: Schedule) -> tuple[int, ...]:
    """Return for each rank the position of the first instruction that waits for ever.

    It is the length of the program if the rank comes to its end. Nothing that has become possible
    is ever taken back, so one execution, in any order, decides.

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
            positions[rank] = _advance(
                program, position=positions[rank], made=made, num_stages=num_stages
            )
    return tuple(positions)


def _advance(program: Program, *, position: int, made: set[Value], num_stages: int) -> int:
    while position < len(program):
        if not made.issuperset(inputs(program[position], num_stages=num_stages)):
            break
        made.add(output(program[position]))
        position += 1
    return position
