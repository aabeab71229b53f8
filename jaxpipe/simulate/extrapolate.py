"""The seconds of a long step, foreseen from short ones, and how a search makes use of them."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from jaxpipe.plan import Plan
from jaxpipe.simulate.plan_step import Conditions, plan_step_s


def extrapolated_step_s(plan: Plan, conditions: Conditions) -> float:
    """Return the seconds of a step, of which only the first microbatches are simulated.

    Once a pipeline is full, each further microbatch takes as long as the one before. So two short
    steps give the long one, in a time that does not grow with the batch; a short one is simulated.

    With deep warm-ups on slow links a pipeline takes longer to fill than is simulated here, and
    the step is foreseen too short, by some per cent: never compare such seconds with exact ones.
    """
    shortest = max(2 * plan.num_stages, *(plan.warmup or ()), 1)
    if plan.num_microbatches <= 2 * shortest:
        return plan_step_s(plan, conditions)
    once_s, twice_s = (
        plan_step_s(replace(plan, num_microbatches=times * shortest), conditions)
        for times in (1, 2)
    )
    left = plan.num_microbatches - 2 * shortest
    return twice_s + (twice_s - once_s) / shortest * left


def step_objective(conditions: Conditions) -> Callable[[Plan], float]:
    """Return what values the plans of one search: all seconds that could win are exact.

    A plan is foreseen first. Only if it is foreseen faster than all plans so far, the whole step is
    simulated; else it has lost, and what was foreseen is returned, which is no less than the best.
    """
    best_s = inf

    def seconds(plan: Plan) -> float:
        nonlocal best_s
        foreseen_s = extrapolated_step_s(plan, conditions)
        if foreseen_s >= best_s:
            return foreseen_s
        exact_s = plan_step_s(plan, conditions)
        best_s = min(best_s, exact_s)
        return exact_s

    return seconds
