"""Plans whose replicas are alike: the best few of all shapes, by the closed form of a step.

::

    shapes, roughly ──► shapes x placements x all-reduces x microbatches ──► the best of each shape
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan
from jaxpipe.plan.check import MAX_MICROBATCHES
from jaxpipe.plan.cost import estimate
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import (
    build,
    first_schedules,
    lacking_bytes,
    with_first_schedules,
)
from jaxpipe.search.generators.alternatives import with_all_reduce
from jaxpipe.search.shapes import Shape, shapes
from jaxpipe.search.starts import by_dtfm_cost, orders
from jaxpipe.search.task import Task

_MICROBATCHES = (1, 2, 4)
_UNTIL = 0.3
"""The fraction of the seconds until which plans are ranked in closed form."""


_ROUGH, _RANKED = 0.5, 0.75
"""The fractions of that after which shapes are compared roughly, and then ranked; the rest is for
the search of placements."""
_ROUGH_ALL_REDUCE = AllReduceKind.HIERARCHICAL
"""With which shapes are compared first: it sends least over slow links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """The best plan of a shape, and its seconds in closed form."""

    estimate_s: float
    plan: Plan | None
    shape: Shape


def even(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the best plan of each of the best shapes, best first."""
    yield from even_plans(task, best, until=_UNTIL)


def even_plans(task: Task, best: Best, *, until: float) -> Iterator[Plan]:
    """Yield the best plans of a task, until a fraction of the seconds is spent.

    All shapes are ranked with simple placements, those first that look best with one of them; for
    twice as many of the best as are valued first, a placement is searched as well. Of shapes that
    do not fit, the smallest plan comes last.
    """
    num_valued, begin = best.effort.num_valued, best.spent()
    ranked: list[_Ranked] = []
    fraction = until - begin
    for shape in _promising_first(task, best, until=begin + _ROUGH * fraction):
        # At least one shape, however short the time.
        if ranked and best.spent() > begin + _RANKED * fraction:
            break
        ranked.append(_fastest(task, shape, orders(task, shape)))
    ranked.sort(key=lambda each: each.estimate_s)
    is_free = task.fixed.devices is None and not task.is_uniform
    fitting = [each for each in ranked if each.estimate_s < inf][: 2 * num_valued]
    for number, first in enumerate(fitting):
        if is_free and (seconds := best.left_s(until)) > 0:
            placement = by_dtfm_cost(task, first.shape, seed=best.effort.seed, seconds=seconds)
            other = _fastest(task, first.shape, [placement])
            fitting[number] = min(first, other, key=lambda each: each.estimate_s)
    fitting.sort(key=lambda each: each.estimate_s)
    for each in (*fitting[:num_valued], *ranked[len(fitting) :][:num_valued]):
        if each.plan is not None:
            yield each.plan


def _promising_first(task: Task, best: Best, *, until: float) -> list[Shape]:
    """Return all shapes, those first that are fast on the devices in their order.

    Shapes for which there is no time come last, the largest first.
    """
    largest, *others = shapes(task)
    seconds: dict[Shape, float] = {}
    # The smallest second: over very slow links nothing else will do.
    for shape in (largest, *others[-1:], *others[:-1]):
        if seconds and best.spent() > until:
            break
        kind = task.fixed.all_reduce or _ROUGH_ALL_REDUCE
        plan = _built(task, shape, next(orders(task, shape)), all_reduce=kind)
        seconds[shape] = estimated_s(task, plan)
    return sorted((largest, *others), key=lambda shape: seconds.get(shape, inf))


def _fastest(task: Task, shape: Shape, placements: Iterable[np.ndarray]) -> _Ranked:
    """Return the best plan that fits; of infinite seconds, if none fits, one that needs least.

    It has the all-reduce that suits it best.
    """
    share = task.batch // shape.replicas
    plans = [
        plan.of_each(microbatch=size, num_microbatches=share // size)
        for plan in _unsized(task, shape, placements)
        for size in _sizes(task, share)
    ]
    # The index breaks ties: plans have no order.
    order = sorted((estimated_s(task, plan), index) for index, plan in enumerate(plans))
    smallest = None
    # Memory is checked in this order, and only until a plan fits.
    for estimate_s, index in order:
        for plan in with_first_schedules(task, plans[index]):
            if not lacking_bytes(task, plan):
                return _Ranked(estimate_s=estimate_s, plan=plan, shape=shape)
            smallest = plan
    return _Ranked(estimate_s=inf, plan=smallest, shape=shape)


def _unsized(task: Task, shape: Shape, placements: Iterable[np.ndarray]) -> list[Plan]:
    """Return plans of all all-reduces: trees and cut do not depend on the microbatch."""
    fixed = task.fixed
    kinds = [kind for kind in AllReduceKind if kind.facts.is_ranked]
    if fixed.all_reduce is not None:
        kinds = [fixed.all_reduce]
    built = [_built(task, shape, placement, all_reduce=kinds[0]) for placement in placements]
    others = kinds[1:] if shape.replicas > 1 else ()
    # With the same partition, which takes as long to find as the trees.
    return [*built, *(with_all_reduce(task, plan, kind) for plan in built for kind in others)]


def _built(task: Task, shape: Shape, placement: np.ndarray, *, all_reduce: AllReduceKind) -> Plan:
    """Return the plan of a placement, in microbatches of one sample."""
    return build(
        task,
        placement,
        microbatch=1,
        schedule=first_schedules(task, shape.stages)[0],
        warmup=task.fixed.warmup,
        all_reduce=all_reduce,
        num_chunks=task.fixed.num_chunks,
    )


def _sizes(task: Task, share: int) -> Iterator[int]:
    """Yield microbatches that divide the share of a replica, in as many as a step may have."""
    least = -(-share // MAX_MICROBATCHES)
    larger = (2 ** (least - 1).bit_length(),) if least > max(_MICROBATCHES) else ()
    given = task.fixed.microbatch
    sizes = (*_MICROBATCHES, *larger) if given is None else (given,)
    yield from (size for size in sizes if share % size == 0 and size >= least)


def estimated_s(task: Task, plan: Plan) -> float:
    """Return the seconds of a step in closed form, whatever the schedule."""
    return estimate(
        plan,
        task.cluster,
        task.profile,
        slow=task.slow,
        gradient_bytes=task.bytes_each.gradient,
        chunk_bytes=task.chunk_bytes,
    ).step_s
