"""Changes of the best plan so far: other devices, cut, schedule, microbatch or all-reduce.

A plan whose replicas are unlike is changed in one way alone: the slowest replica gives a microbatch
to another one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import with_suited_trees
from jaxpipe.search.generators.alternatives import (
    other_all_reduces,
    other_microbatches,
    other_schedules,
)
from jaxpipe.search.generators.unlike import moved_microbatches
from jaxpipe.search.task import Task


def changes(task: Task, best: Best) -> Iterator[tuple[float, Plan]]:
    """Yield as many random changes as the effort has, each of the best plan at its time."""
    for _ in range(best.effort.num_changes):
        if best.plan is None:
            return
        if not best.plan.is_even:
            yield from ((0.0, plan) for plan in _while_best(task, best))
            return
        yield 0.0, neighbour(task, best.plan, random=best.random)


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
    return _one_of([other for _, other in other_all_reduces(task, plan)], plan, random)


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
