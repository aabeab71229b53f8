"""Plans for clusters of unlike GPUs: the best layouts by their closed form, on devices.

::

    types and regions ──search_layout──► the best few layouts ──► plans

All replicas have the same cut; which types hold which stage, in which order and in which regions,
is searched with a lower bound for each combination (`jaxpipe.search.layout`).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import comb, inf

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import first_fitting, with_suited_trees
from jaxpipe.search.layout import Layout, LayoutTask, closed_form_s, plan_of_layout, search_layout
from jaxpipe.search.layout.task_costs import TaskCosts
from jaxpipe.search.task import Task

_MICROBATCHES = (1, 2, 4)
_MOST_STAGES = 8
_MOST_COMBINATIONS = 20_000
"""Of the types of stages, for each number of replicas: all are bounded before the search begins."""
_PER_CHANGE = 50
"""Layouts that are valued in closed form for each random change of the effort."""
_NUM_BEST, _NUM_PLANS = 500, 12
"""Layouts to choose from, and those of different shapes that are yielded: most are neighbours."""
_FRACTION = 0.15
"""The fraction of the seconds for layouts."""


def layouts(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the plans of the best layouts, if devices are of several types."""
    costs = TaskCosts(task)
    if len(set(costs.types)) == 1 or task.fixed.devices is not None or task.fixed.num_chunks > 1:
        return
    try:
        found = search_layout(
            _layout_task(task, costs),
            limit_s=best.left_s(best.spent() + _FRACTION),
            most_evaluated=_PER_CHANGE * (1 + best.effort.num_changes),
            seed=best.effort.seed,
            num_best=_NUM_BEST,
        )
    except PlanError:  # no layout fits: other plans may
        return
    for layout in _of_each_shape(found.best)[:_NUM_PLANS]:
        with suppress(PlanError):  # groups may be scattered over hosts, or the batch not divide
            yield _plan(task, costs, layout)


def _of_each_shape(best: Iterable[Layout]) -> list[Layout]:
    """Return the best layout of each number of stages, replicas and samples, best first."""
    found: dict[tuple[int, int, int], Layout] = {}
    for layout in best:
        found.setdefault((layout.num_stages, layout.num_replicas, layout.microbatch), layout)
    return list(found.values())


def _layout_task(task: Task, costs: TaskCosts) -> LayoutTask:
    fixed = task.fixed

    def seconds(layout: Layout) -> float:
        num_ranks = layout.num_stages * layout.num_replicas
        wanted = (
            (fixed.depth, layout.num_stages),
            (fixed.replicas, layout.num_replicas),
            (fixed.num_ranks, num_ranks),
            (fixed.cut, layout.cut),
        )
        if any(value not in (None, own) for value, own in wanted):
            return inf
        return closed_form_s(layout, costs, batch=task.batch)

    num_kinds = sum(len(costs.degrees(kind, 1)) for kind in set(costs.types))
    most = _MOST_STAGES
    while most > 1 and comb(num_kinds + most, most) > _MOST_COMBINATIONS:
        most -= 1
    sizes = _MICROBATCHES if fixed.microbatch is None else (fixed.microbatch,)
    return LayoutTask(
        gpus=costs.gpus,
        num_layers=task.num_layers,
        batch=task.batch,
        microbatches=tuple(size for size in sizes if task.batch % size == 0),
        costs=costs,
        objective=seconds,
        most_stages=most,
        overlaps=True,
    )


def _plan(task: Task, costs: TaskCosts, layout: Layout) -> Plan:
    """Return the plan of a layout with sync trees for its devices."""
    plan = plan_of_layout(
        layout,
        task.cluster,
        num_layers=task.num_layers,
        batch=task.batch,
        tied=task.tied,
        types=costs.types,
    )
    fitting = first_fitting(task, plan) or plan
    kind = task.fixed.all_reduce or plan.all_reduce
    return with_suited_trees(task, replace(fitting, all_reduce=kind))
