"""Search for a plan: rank all shapes in closed form, evaluate the best, and improve the winner.

::

    shapes x placements x all-reduces x microbatches ──estimate──► the best few
    the best few ──objective──► the best ──► climb
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import TypeAlias

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.estimate import estimate
from jaxpipe.plan.cost.memory import overfull
from jaxpipe.plan.decide.build_plan import build
from jaxpipe.plan.decide.neighbours import (
    deepened,
    neighbour,
    other_all_reduces,
    with_all_reduce,
)
from jaxpipe.plan.decide.starts import by_dtfm_cost, orders
from jaxpipe.plan.decide.task import Shape, Task, shapes
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind

Objective: TypeAlias = Callable[[Plan], float]
"""The cost of a plan in seconds, to be minimised: for example a simulated step."""

_SCHEDULES = (ScheduleKind.EAGER_ONE_F_ONE_B, ScheduleKind.ONE_F_ONE_B)
"""The first that fits into memory is evaluated: depth hides messages, and costs only memory."""
_OTHER_ALL_REDUCES = (AllReduceKind.HIERARCHICAL, AllReduceKind.SHARDED)
"""Besides trees; those whose closed form holds where links differ. The best plan tries all."""
_RANKING = 0.5
"""The fraction of the seconds for ranking shapes in closed form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The effort of a search: plans to evaluate, changes to try, seconds.

    A search that ends before `seconds` gives the same result in every run.
    """

    num_valued: int = 8
    num_changes: int = 100
    seconds: float = inf
    microbatches: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        if self.num_valued < 1 or self.num_changes < 0 or not self.seconds > 0:
            raise PlanError(
                f"a decision takes effort: `num_valued` is {self.num_valued}, `num_changes` "
                f"{self.num_changes}, `seconds` {self.seconds}; let the first be at least 1, the "
                "second at least 0 and the third above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plan, its value, the unused devices, and the number of plans evaluated.

    `by_shape` has the best value of each evaluated shape, best first.
    """

    plan: Plan
    value: float
    left_out: tuple[int, ...]
    num_valued: int
    by_shape: tuple[tuple[Shape, float], ...]


def decide(
    task: Task,
    objective: Objective,
    *,
    seed: int = 0,
    effort: Effort | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision:
    """Return the best plan found that fits into the devices' memory.

    The objective is evaluated for the most promising plans only, first for one of each shape.

    Raises:
        PlanError: no plan fits the devices, the layers, the batch and the memory.
    """
    effort = effort or Effort()
    start = clock()

    def spent() -> float:
        return (clock() - start) / effort.seconds  # 0 without a limit, which is infinity

    first, *others = _candidates(task, effort=effort, seed=seed, spent=spent)[: effort.num_valued]
    best = _Best(objective=objective, plan=first)
    for plan in others:
        if spent() > 1:
            break
        best.offer(plan)
    # Lazy: a change starts from the best plan at its time, which `offer` may have replaced.
    for changed in _changes(task, best, effort=effort, seed=seed):
        if spent() > 1:
            break
        # A random change may do nothing, for example swap a device with itself.
        if changed != best.plan and _fits(task, changed):
            best.offer(changed)
    used = {device for row in best.plan.placement for device in row}
    return Decision(
        plan=best.plan,
        value=best.value,
        left_out=tuple(device for device in range(len(task.cluster)) if device not in used),
        num_valued=best.num_valued,
        by_shape=tuple(sorted(best.by_shape.items(), key=lambda each: each[1])),
    )


@dataclass(slots=True, kw_only=True)
class _Best:
    """The best plan so far."""

    objective: Objective
    plan: Plan
    value: float = inf
    num_valued: int = 0
    by_shape: dict[Shape, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offer(self.plan)

    def offer(self, plan: Plan) -> None:
        """Evaluate a plan, and keep it if it is better."""
        value = self.objective(plan)
        self.num_valued += 1
        shape = Shape(stages=plan.num_stages, replicas=plan.num_replicas)
        self.by_shape[shape] = min(value, self.by_shape.get(shape, inf))
        if value < self.value:
            self.plan, self.value = plan, value


def _changes(task: Task, best: _Best, *, effort: Effort, seed: int) -> Iterator[Plan]:
    """Yield changes of the best plan so far: all-reduces and warm-ups first, then random ones."""
    yield from islice(other_all_reduces(task, best.plan), effort.num_changes)
    yield from islice(deepened(best.plan), effort.num_changes)
    random = np.random.default_rng(seed)
    for _ in range(effort.num_changes):
        yield neighbour(task, best.plan, random=random)


def _candidates(task: Task, *, effort: Effort, seed: int, spent: Callable[[], float]) -> list[Plan]:
    """Return the best plan of the best shapes by its closed form, best first.

    All shapes are ranked with simple placements; for twice as many of the best as will be
    evaluated, a placement is searched as well.
    """
    ranked: list[tuple[float, Plan, Shape]] = []
    for shape in shapes(task):
        # At least one shape, however short the time.
        if ranked and spent() > _RANKING:
            break
        ordered = _fastest(task, shape, orders(task, shape), effort=effort)
        ranked += [(*each, shape) for each in ordered[:1]]
    ranked.sort(key=lambda each: each[0])
    plans: list[tuple[float, Plan]] = []
    for seconds, plan, shape in ranked[: 2 * effort.num_valued]:
        known = [(seconds, plan)]
        if spent() < _RANKING:
            searched = iter([by_dtfm_cost(task, shape, seed=seed)])
            known += _fastest(task, shape, searched, effort=effort)
        plans.append(min(known, key=lambda each: each[0]))
    if not plans:
        raise PlanError(
            f"a plan fits into its devices: none does for {task.num_layers} layers, `batch` "
            f"{task.batch} and the {len(task.cluster)} devices of cluster {task.cluster.name!r}; "
            "take larger devices, a smaller model, or rematerialise"
        )
    return [plan for _, plan in sorted(plans, key=lambda each: each[0])]


def _fastest(
    task: Task, shape: Shape, placements: Iterator[np.ndarray], *, effort: Effort
) -> list[tuple[float, Plan]]:
    """Return the best plan that fits, with its estimated seconds; an empty list if none fits.

    Each has the all-reduce that suits it best.
    """
    each = task.batch // shape.replicas
    fitting = [size for size in effort.microbatches if each % size == 0]
    # Built once for all sizes of microbatches: trees and partition do not depend on them.
    along_trees = [build(task, p, microbatch=1, schedule=_SCHEDULES[0]) for p in placements]
    # With the same partition, which takes as long to find as the trees.
    others = _OTHER_ALL_REDUCES if shape.replicas > 1 else ()
    built = [
        *along_trees,
        *(with_all_reduce(task, plan, kind) for plan in along_trees for kind in others),
    ]
    sized = [
        plan.of_each(microbatch=size, num_microbatches=each // size)
        for plan in built
        for size in fitting
    ]
    # The index breaks ties: plans have no order.
    order = sorted((_estimated_s(task, plan), index) for index, plan in enumerate(sized))
    variants = (
        (seconds, replace(sized[index], schedule=kind))
        for seconds, index in order
        for kind in _SCHEDULES
    )
    # Lazy: memory is checked in this order, and only until a plan fits.
    return list(islice((each for each in variants if _fits(task, each[1])), 1))


def _estimated_s(task: Task, plan: Plan) -> float:
    return estimate(
        plan,
        task.cluster,
        task.profile,
        slow=task.slow,
        gradient_bytes=task.bytes_each.gradient,
        chunk_bytes=task.chunk_bytes,
    ).step_s


def _fits(task: Task, plan: Plan) -> bool:
    return not overfull(plan, task.profile, task.cluster, each=task.bytes_each)
