"""Extrapolation of long steps from short ones, and the objective of a search that uses it."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from jaxpipe.plan import Plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate.outer_step import mean_step_s
from jaxpipe.simulate.plan_step import Conditions, plan_step_s, segment_bytes

_FEW_CHUNKS = 4
"""Of a share: the links of its chunks overlap, and more chunks change a step by some per mille."""


def extrapolate(seconds: Callable[[int], float], *, size: int, short: int) -> float:
    """Return `seconds(size)`, from `seconds(short)` and `seconds(2 * short)` where that is less.

    Once a pipeline is full, each further microbatch takes as long as the one before. So two short
    steps give the long one, in a time that does not grow with the batch; a step of up to
    `2 * short` is simulated as it is.

    >>> extrapolate(lambda size: 5.0 + 2.0 * size, size=1000, short=10)
    2005.0
    """
    if size <= 2 * short:
        return seconds(size)
    once_s, twice_s = seconds(short), seconds(2 * short)
    return twice_s + (twice_s - once_s) / short * (size - 2 * short)


def extrapolated_step_s(plan: Plan, conditions: Conditions) -> float:
    """Return the seconds of a step of a plan, of which only the first microbatches are simulated.

    Shares of gradients go in few chunks. With deep warm-ups on slow links a pipeline takes longer
    to fill than is simulated here, and the result is too small, by some per cent: never compare
    such seconds with exact ones.
    """
    conditions = _with_few_chunks(plan, conditions)
    # Unlike replicas are not full at the same time, and a custom schedule has one length.
    if not plan.is_even or not isinstance(plan.schedule, ScheduleKind):
        return plan_step_s(plan, conditions)

    def seconds(num_microbatches: int) -> float:
        return plan_step_s(plan.of_each(num_microbatches=num_microbatches), conditions)

    # At least 2 p - 1, the default warm-up of eager 1F1B, or the plan's own: the pipeline is full.
    short = max(2 * plan.num_stages, *(plan.warmup or ()), 1)
    return extrapolate(seconds, size=plan.num_microbatches, short=short)


def _with_few_chunks(plan: Plan, conditions: Conditions) -> Conditions:
    """Return conditions in which a share of an all-reduce has at most `_FEW_CHUNKS` messages.

    Where all replicas of a stage exchange shares, their messages are most of what is simulated.
    """
    if plan.all_reduce.facts.sends_whole_chunks or plan.num_replicas == 1:
        return conditions
    largest = max(segment_bytes(plan, conditions.profile, gradient_bytes=conditions.gradient_bytes))
    overheads = conditions.overheads
    fewest_bytes = largest / plan.num_replicas / _FEW_CHUNKS
    fewer = replace(overheads, chunk_bytes=max(overheads.chunk_bytes, fewest_bytes))
    return replace(conditions, overheads=fewer)


def step_objective(
    conditions: Conditions, *, exact: Callable[[Plan, Conditions], float] = plan_step_s
) -> Callable[[Plan], float]:
    """Return the objective of one search: the seconds of a plan, exact if the plan could win.

    Each plan is extrapolated first. Only if it seems faster than the best so far, its whole step is
    simulated; otherwise it has lost, and the extrapolated seconds, no less than the best, are
    returned. `exact` simulates a whole step; with an outer loop, one of an island.
    """
    best_s = inf

    def seconds(plan: Plan) -> float:
        nonlocal best_s
        short_s = mean_step_s(plan, conditions, step_s=extrapolated_step_s)
        if short_s >= best_s:
            return short_s
        exact_s = mean_step_s(plan, conditions, step_s=exact)
        best_s = min(best_s, exact_s)
        return exact_s

    return seconds
