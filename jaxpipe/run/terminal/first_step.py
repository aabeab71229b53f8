"""How far the first step is: minutes, on a slow machine, in which no line of a step is due.

::

    rank 0    forward 0   forward 1   backward 0   backward 1   reduce   update
    done      0           1           2            4            6        6 of 6

A backward counts as two forwards, which it is in products; messages and reductions as nothing.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from jaxpipe.plan import Plan
from jaxpipe.run.terminal.progress import WORK, Progress
from jaxpipe.schedule import Instruction, Op, Program

FIRST_STEP: Final = "first step"

_WEIGHTS: Final = MappingProxyType(
    {Op.FORWARD: 1, Op.BACKWARD: 2, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 1}
)


class FirstStep:
    """Says before each computation of a rank's program how many are done.

    Args:
        program: the instructions of the rank in a training step.
        say: called with each change.

    >>> forward, backward = (
    ...     Instruction(op=op, stage=0, microbatch=0) for op in (Op.FORWARD, Op.BACKWARD)
    ... )
    >>> step = FirstStep((forward, backward), lambda progress: print(progress.text))
    >>> step.before(forward), step.before(backward)
    first step: 0 of 2 computations
    first step: 1 of 2 computations
    (None, None)
    """

    def __init__(self, program: Program, say: Callable[[Progress], None]) -> None:
        weights = [
            _WEIGHTS[instruction.op] for instruction in program if instruction.op in _WEIGHTS
        ]
        self._num_computations, self._total = len(weights), sum(weights)
        self._say = say
        self._num_done = self._done = 0
        self._running = 0

    def before(self, instruction: Instruction) -> None:
        """Say how much is done before an instruction; the one before it has ended."""
        if self._running:
            self._num_done, self._done = self._num_done + 1, self._done + self._running
        self._running = _WEIGHTS.get(instruction.op, 0)
        detail = f"{self._num_done} of {self._num_computations} computations"
        if self._done < self._total:
            self._say(
                Progress(
                    what=FIRST_STEP, detail=detail, done=self._done, total=self._total, unit=WORK
                )
            )
        elif instruction.op in (Op.REDUCE, Op.UPDATE, Op.GATHER):
            # Whoever waits here waits for slower ranks: for how long, this one cannot know.
            self._say(Progress(what=f"{FIRST_STEP}: {instruction.op}"))


def first_step(plan: Plan, *, rank: int, say: Callable[[Progress], None]) -> FirstStep:
    """Return the progress of a rank's first step."""
    programs = plan.train_schedule(replica=plan.replica(rank))
    return FirstStep(programs[plan.number(rank)], say)
