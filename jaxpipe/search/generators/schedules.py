"""All schedules for the shapes that are nearly the best, and schedules made to measure."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from jaxpipe.plan import Plan
from jaxpipe.plan.cost import live_limits
from jaxpipe.schedule import ScheduleKind, WeightPlacement, greedy
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import with_suited_trees
from jaxpipe.search.generators.alternatives import other_schedules
from jaxpipe.search.shapes import has_one_order
from jaxpipe.search.task import Task
from jaxpipe.simulate import Conditions, extrapolated_step_s, plan_step, stage_costs

_WORTH = 1.25
"""A schedule gains no more than this over eager 1F1B, as far as was measured."""
_WORTH_OF_CHUNKS = 5 / 3
"""Of one rank chunks hide an all-reduce that lasts as long as a backward, 2/3 of the computing."""
_FASTER = 0.995
_MOST_SCHEDULES = 3
"""Of a shape, those that are fastest for a replica, by half a per cent at least."""
_MOST_INSTRUCTIONS = 512
"""A schedule made to measure names each forward and backward in the plan file."""
_SLOPES = (1, 1.5, 2, 3, 4, 8)
"""Warm-up microbatches of a rank in addition to the next rank's: 1F1B has 1, ZB-H2 has 2."""


def schedules(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the best plans of the best shapes with the schedules that are faster for a replica."""
    shapes = sorted(best.by_shape.values(), key=lambda trial: trial.value)
    for trial in shapes:
        has_chunks_alone = has_one_order(trial.plan)
        worth = _WORTH_OF_CHUNKS if has_chunks_alone else _WORTH
        if trial.value > worth * best.value:
            continue
        others = [plan for _, plan in other_schedules(task, trial.plan)]
        if has_chunks_alone:  # they differ in what a replica alone does not do
            yield from others
        elif len(others) > 1:
            base_s = replica_s(task, trial.plan)
            seconds = {plan: replica_s(task, plan) for plan in others}
            faster = [plan for plan in others if seconds[plan] < _FASTER * base_s]
            yield from sorted(faster, key=seconds.__getitem__)[:_MOST_SCHEDULES]


def replica_s(task: Task, plan: Plan) -> float:
    """Return the simulated seconds of the first replica alone, over links as the cluster states.

    A hundred times faster than a step of many replicas, and what schedules differ in.
    """
    alone = with_suited_trees(task, replace(plan, pipelines=plan.pipelines[:1]))
    return extrapolated_step_s(alone, conditions_of(task))


def conditions_of(task: Task) -> Conditions:
    """Return the conditions of a simulation that a task alone decides: without overheads."""
    return Conditions(
        cluster=task.cluster,
        profile=task.profile,
        slow=task.slow,
        gradient_bytes=task.bytes_each.gradient,
        recomputes=task.recomputes,
    )


def made_to_measure(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the best plan with greedy schedules of its stages' and messages' seconds."""
    plan = best.plan
    if plan is None or not _is_suited(task, plan):
        return
    costs = stage_costs(plan_step(plan, conditions_of(task)))
    limits = live_limits(plan, task.profile, task.cluster, each=task.bytes_each)
    if min(limits) < 1:
        return
    behind = range(plan.num_stages)[::-1]
    warmups = [
        tuple(
            max(1, min(1 + int(slope * after), limit, plan.num_microbatches))
            for after, limit in zip(behind, limits, strict=True)
        )
        for slope in _SLOPES
    ]
    # Limits of memory make some slopes equal.
    for weights, warmup in product(WeightPlacement, dict.fromkeys(warmups)):
        schedule = greedy(
            costs,
            num_microbatches=plan.num_microbatches,
            warmup=warmup,
            max_live=limits,
            weights=weights,
        )
        yield replace(plan, schedule=schedule).of_each(warmup=None)


def _is_suited(task: Task, plan: Plan) -> bool:
    """Return whether a schedule of its own may serve a plan, and is short enough to write down."""
    fixed = task.fixed
    return (
        fixed.schedule is None
        and fixed.warmup is None
        and plan.is_even
        and plan.num_chunks == 1
        and plan.num_stages > 1
        and isinstance(plan.schedule, ScheduleKind)
        and 3 * plan.num_stages * plan.num_microbatches <= _MOST_INSTRUCTIONS
    )
