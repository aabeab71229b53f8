"""1F1B: after a warm-up of forwards, every stage alternates one backward and one forward.

The warm-up of a stage is the number of its forwards before its first backward, and so the number
of microbatches whose residuals it keeps. The shortest that keeps equal stages busy is the number
of stages from here to the last: plain 1F1B. A longer one buys time for messages with memory, which
pays on far-apart links. From the forward of microbatch k on stage s, there and back again takes
2 (f + b + c) seconds, if a forward takes f, a backward b and a message c; stage s + 1 has by then
used w(s) - w(s + 1) + 1 microbatches, which keep it busy for f + b each. So once the pipeline is
full, no stage waits for messages of up to::

    c  =  (w(s) - w(s + 1) - 1) (f + b) / 2

    warm-up w(s) of p stages, m microbatches         c
    1F1B          min(m, p - s)                      0
    eager 1F1B    min(m, 2 (p - s) - 1)              (f + b) / 2
    GPipe         m                                  any: no backward precedes the last forward
"""

from collections.abc import Iterable
from itertools import pairwise

from jaxpipe.errors import PlanError
from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts, ScheduleSize
from jaxpipe.schedule.instruction import Program, Schedule, backward, forward
from jaxpipe.schedule.virtual_stages import check_size


def one_f_one_b(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions of 1F1B with a flush at the end of each step.

    The bubble is that of GPipe; stage s of p keeps the residuals of min(m, p - s) microbatches.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(one_f_one_b(num_stages=3, num_microbatches=5)))
    stage 0  0  1  2  .  . [0] 3 [1] 4 [2] . [3] . [4]
    stage 1  .  0  1  . [0] 2 [1] 3 [2] 4 [3] . [4] .
    stage 2  .  .  0 [0] 1 [1] 2 [2] 3 [3] 4 [4] .  .

    Raises:
        PlanError: there are no stages or no microbatches.

    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021
    (PipeDream-Flush).
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        _of_stage(
            stage,
            warmup=min(num_microbatches, num_stages - stage),
            num_microbatches=num_microbatches,
        )
        for stage in range(num_stages)
    )


def eager_one_f_one_b(
    *, num_stages: int, num_microbatches: int, warmup: tuple[int, ...] | None = None
) -> Schedule:
    """Return the compute instructions of 1F1B with a warm-up of `warmup[s]` forwards on stage s.

    Without `warmup` it is that of eager 1F1B, min(m, 2 (p - s) - 1). A warm-up of m on every stage
    is GPipe. Stage s keeps the residuals of `warmup[s]` microbatches.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(eager_one_f_one_b(num_stages=3, num_microbatches=5)))
    stage 0  0  1  2  3  4 [0] . [1] . [2] . [3] . [4]
    stage 1  .  0  1  2 [0] 3 [1] 4 [2] . [3] . [4] .
    stage 2  .  .  0 [0] 1 [1] 2 [2] 3 [3] 4 [4] .  .

    A warm-up that is shorter than that of 1F1B saves memory and waits:

    >>> print(render(eager_one_f_one_b(num_stages=3, num_microbatches=4, warmup=(3, 1, 1))))
    stage 0  0  1  2  .  . [0] 3  .  . [1] .  .  . [2] .  .  . [3]
    stage 1  .  0  .  . [0] 1  .  . [1] 2  .  . [2] 3  .  . [3] .
    stage 2  .  .  0 [0] .  .  1 [1] .  .  2 [2] .  .  3 [3] .  .

    Raises:
        PlanError: there are no stages or no microbatches; or `warmup` does not have one number
            between 1 and `num_microbatches` for each stage; or it increases from a stage to the
            next, which would wait for forwards that the stage before does only after a backward.

    Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023
    (eager-1F1B; its stages count from 1).
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    if warmup is None:
        warmup = tuple(min(num_microbatches, depth) for depth in _eager_depths(num_stages))
    check_warmup(warmup, num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        _of_stage(stage, warmup=forwards, num_microbatches=num_microbatches)
        for stage, forwards in enumerate(warmup)
    )


def _eager_depths(num_stages: int) -> list[int]:
    return [2 * (num_stages - stage) - 1 for stage in range(num_stages)]


def _eager_live(size: ScheduleSize) -> Iterable[int]:
    return size.warmup or _eager_depths(size.num_stages)


ONE_F_ONE_B = ScheduleFacts(
    generate=one_f_one_b, most_live=lambda size: range(size.num_stages, 0, -1)
)
EAGER_ONE_F_ONE_B = ScheduleFacts(
    generate=eager_one_f_one_b, most_live=_eager_live, takes_warmup=True
)


def alternate(forwards: Program, backwards: Program, *, warmup: int) -> Program:
    """Return the first `warmup` forwards, then one backward and one forward in turn.

    >>> forwards, backwards = (forward(0, 0), forward(0, 1)), (backward(0, 0), backward(0, 1))
    >>> program = alternate(forwards, backwards, warmup=1)
    >>> [f"{each.op} {each.microbatch}" for each in program]
    ['forward 0', 'backward 0', 'forward 1', 'backward 1']
    """
    program = list(forwards[:warmup])
    for position, instruction in enumerate(backwards):
        # Backward first: it frees the residuals for which the forward needs the room.
        program.append(instruction)
        program += forwards[warmup + position : warmup + position + 1]
    return tuple(program)


def _of_stage(stage: int, *, warmup: int, num_microbatches: int) -> Program:
    microbatches = range(num_microbatches)
    return alternate(
        tuple(forward(stage, microbatch) for microbatch in microbatches),
        tuple(backward(stage, microbatch) for microbatch in microbatches),
        warmup=warmup,
    )


def check_warmup(warmup: tuple[int, ...], *, num_stages: int, num_microbatches: int) -> None:
    """Check that each stage has a warm-up, which its microbatches and the stage before it allow.

    Raises:
        PlanError: it does not.
    """
    if len(warmup) != num_stages:
        raise PlanError(
            f"`warmup` {warmup} has {len(warmup)} numbers for {num_stages} stages; give one for "
            "each"
        )
    if not all(1 <= forwards <= num_microbatches for forwards in warmup):
        raise PlanError(
            f"`warmup` {warmup} must be between 1 and `num_microbatches` ({num_microbatches}) in "
            "each stage"
        )
    if any(after > before for before, after in pairwise(warmup)):
        raise PlanError(
            f"`warmup` {warmup} must not increase from a stage to the next, which feeds it"
        )
