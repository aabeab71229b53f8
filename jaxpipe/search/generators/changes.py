"""Changes of the best plan so far: other devices, cut, schedule, microbatch or all-reduce.

A plan whose replicas are unlike is changed in one way alone: the slowest replica gives a microbatch
to another one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import with_suited_trees
from jaxpipe.search.generators.alternatives import (
    is_reduced,
    other_microbatches,
    other_schedules,
    with_all_reduce,
)
from jaxpipe.search.generators.unlike import moved_microbatches
from jaxpipe.search.task import Task

_MOST_KNOWN = 100
"""As many changes in a row that were tried before say that there are no others."""
_NEAR, _NUM_SHAPES = 1.15, 2
"""Shapes that are so near the best one are changed as well: one of them may become the best."""


def changes(task: Task, best: Best) -> Iterator[Plan]:
    """Yield as many random changes as the effort has, of the best plans at their time.

    Where few plans exist, all of them are known soon: the changes end when nothing new is found.
    """
    since, num_known = 0, len(best.trials)
    for number in range(best.effort.num_changes):
        if len(best.trials) > num_known:
            since, num_known = number, len(best.trials)
        if best.plan is None or number - since > _MOST_KNOWN:
            return
        if not best.plan.is_even:
            yield from _while_best(task, best)
            return
        plan = neighbour(task, _start(best, best.plan, number), random=best.random)
        if best.may_win(plan):
            yield plan


def _start(best: Best, plan: Plan, number: int) -> Plan:
    """Return the best plan every other time, else the best of one of the next best shapes."""
    if number % 2 == 0:
        return plan
    trials = (t for t in best.by_shape.values() if t.value < _NEAR * best.value and t.plan.is_even)
    near = sorted(trials, key=lambda trial: trial.value)[1 : _NUM_SHAPES + 1]
    return near[number // 2 % len(near)].plan if near else plan


def _while_best(task: Task, best: Best) -> Iterator[Plan]:
    """Yield moves of a microbatch from the best plan, and again from each that is better."""
    plan = None
    while plan is not best.plan and best.plan is not None:
        plan = best.plan
        for moved in moved_microbatches(task, plan):
            yield moved
            if best.plan is not plan:
                break


def neighbour(task: Task, plan: Plan, *, random: np.random.Generator) -> Plan:
    """Return an even plan with one random change, and new sync trees."""
    change = _CHANGES[random.integers(len(_CHANGES))]
    return change(task, plan, random)


def _swap_devices(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Swap the devices of two ranks, or those of a rank with as many that are unused."""
    groups = list(plan.groups)
    used = {device for group in groups for device in group}
    if not plan.has_groups:
        groups += [(device,) for device in task.devices if device not in used]
    first, second = random.integers(plan.num_ranks), random.integers(len(groups))
    groups[first], groups[second] = groups[second], groups[first]
    size = plan.num_pipeline_ranks
    rows = [groups[size * n : size * (n + 1)] for n in range(plan.num_replicas)]
    return with_suited_trees(task, plan.on_groups(rows))


def _move_layer(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Move a layer to another stage; the stages between shift by one layer."""
    source, destination = random.integers(plan.num_stages, size=2)
    cut = list(plan.cut)
    # A stage keeps a layer. An unchanged plan is not evaluated.
    if cut[source] > 1:
        cut[source] -= 1
        cut[destination] += 1
    return with_suited_trees(task, plan.of_each(cut=tuple(cut), codecs=()))


def _change_schedule(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    return _one_of([other for _, other in other_schedules(task, plan)], plan, random)


def _change_microbatch(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    return _one_of([other for _, other in other_microbatches(task, plan)], plan, random)


def _change_all_reduce(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    kinds = [kind for kind in AllReduceKind if kind.facts.is_searched]
    kind = kinds[random.integers(len(kinds))]
    # Built for one kind alone: sync trees take longer than anything else of a change.
    return with_all_reduce(task, plan, kind) if is_reduced(plan) else plan


def _one_of(plans: list[Plan], plan: Plan, random: np.random.Generator) -> Plan:
    return plans[random.integers(len(plans))] if plans else plan


_CHANGES: tuple[Callable[[Task, Plan, np.random.Generator], Plan], ...] = (
    _swap_devices,  # twice: there are far more placements than other choices
    _swap_devices,
    _move_layer,
    _change_schedule,
    _change_microbatch,
    _change_all_reduce,
)
