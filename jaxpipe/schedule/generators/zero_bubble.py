"""Zero-bubble schedules: split backwards, whose weight gradients fill idle time.

Both are 1F1B with a warm-up, as in `one_f_one_b`, in which each backward is a backward-input, and
the backward-weight of an earlier microbatch follows it. How much earlier grows along the stages, so
that every stage keeps the same number of microbatches::

    stage s of p        warm-up           weight of microbatch j follows input of    live
    ZB-H1               p - s             j + s                                      p
    ZB-H2               2 (p - s) - 1     j + 2 s                                    2 p - 1

The weight gradients that later stages postpone let their input gradients arrive earlier at the
first stage, which ends last.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2. Its bubble of ZB-H1,
(p - 1) (f + b - w), takes a backward-weight to be the shortest of the three.
"""

from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts
from jaxpipe.schedule.instruction import (
    Program,
    Schedule,
    backward_input,
    backward_weight,
    forward,
)
from jaxpipe.schedule.virtual_stages import check_size


def zb_h1(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions of ZB-H1, which keeps no more than 1F1B does.

    Stage s of p keeps the residuals of min(m, p) microbatches: as many as the first stage of 1F1B.
    If forward, backward-input and backward-weight take f, b and w, equal on all stages, and there
    are at least p microbatches, a stage is idle for (p - 1) (f + b - min(f, b, w)) of the time,
    where 1F1B has (p - 1) (f + b + w).

    >>> from jaxpipe.schedule.render import render
    >>> print(render(zb_h1(num_stages=3, num_microbatches=4)))
    stage 0  0  1  2  .  . <0>(0) 3 <1>(1)<2>(2)<3>(3)
    stage 1  .  0  1  . <0> 2 <1>(0) 3 <2>(1)<3>(2)(3)
    stage 2  .  .  0 <0> 1 <1> 2 <2>(0) 3 <3>(1)(2)(3)

    Raises:
        PlanError: there are no stages or no microbatches.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        _of_stage(
            stage,
            warmup=num_stages - stage,
            num_postponed=stage,
            num_microbatches=num_microbatches,
        )
        for stage in range(num_stages)
    )


def zb_h2(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions of ZB-H2, in which a stage is never idle once it has begun.

    Stage s of p keeps the residuals of min(m, 2 p - 1) microbatches. If forward, backward-input and
    backward-weight take the same time, and there are at least 2 p - 1 microbatches, every stage
    computes without a pause from its first instruction to its last, 3 m of the step's 3 m + p - 1.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(zb_h2(num_stages=3, num_microbatches=5)))
    stage 0  0  1  2  3  4 <0>(0)<1>(1)<2>(2)<3>(3)<4>(4) .  .
    stage 1  .  0  1  2 <0> 3 <1> 4 <2>(0)<3>(1)<4>(2)(3)(4) .
    stage 2  .  .  0 <0> 1 <1> 2 <2> 3 <3> 4 <4>(0)(1)(2)(3)(4)

    Raises:
        PlanError: there are no stages or no microbatches.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        _of_stage(
            stage,
            warmup=2 * (num_stages - stage) - 1,
            num_postponed=2 * stage,
            num_microbatches=num_microbatches,
        )
        for stage in range(num_stages)
    )


ZB_H1 = ScheduleFacts(
    generate=zb_h1,
    most_live=lambda size: [size.num_stages] * size.num_stages,
    splits_backward=True,
)
ZB_H2 = ScheduleFacts(
    generate=zb_h2,
    most_live=lambda size: [2 * size.num_stages - 1] * size.num_stages,
    splits_backward=True,
)


def _of_stage(stage: int, *, warmup: int, num_postponed: int, num_microbatches: int) -> Program:
    program = [forward(stage, microbatch) for microbatch in range(min(warmup, num_microbatches))]
    for microbatch in range(num_microbatches):
        program.append(backward_input(stage, microbatch))
        # The weight gradient of an earlier microbatch: later stages postpone it longer.
        if microbatch >= num_postponed:
            program.append(backward_weight(stage, microbatch - num_postponed))
        # After the weight gradient, which frees the memory that the forward takes.
        if warmup + microbatch < num_microbatches:
            program.append(forward(stage, warmup + microbatch))
    # The flush; with fewer microbatches than postponed ones, all weight gradients are here.
    first_left = max(0, num_microbatches - num_postponed)
    program += (backward_weight(stage, left) for left in range(first_left, num_microbatches))
    return tuple(program)
