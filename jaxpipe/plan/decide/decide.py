"""Decide on a plan: rank all shapes in closed form, value the best, and improve the best of these.

::

    shapes x placements x schedules ──estimate──► the best few ──objective──► the best ──► climb
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import TypeAlias

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.estimate import estimate
from jaxpipe.plan.cost.memory import overfull
from jaxpipe.plan.decide.build import build
from jaxpipe.plan.decide.neighbours import neighbour
from jaxpipe.plan.decide.starts import placements
from jaxpipe.plan.decide.task import Shape, Task, shapes
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind

Objective: TypeAlias = Callable[[Plan], float]
"""What a plan costs in seconds, the less the better: a simulated step, say."""

_SCHEDULES = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER_ONE_F_ONE_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look: shapes and plans that are valued, changes that are tried, seconds.

    A decision that the seconds have not cut short is the same in every run.
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
    """The plan, its value, the devices that it leaves out, and how many plans were valued."""

    plan: Plan
    value: float
    left_out: tuple[int, ...]
    num_valued: int


def decide(
    task: Task,
    objective: Objective,
    *,
    seed: int = 0,
    effort: Effort | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision:
    """Return the best plan found that fits into the devices' memory.

    The objective is called for the most promising plans alone, one for each shape first.

    Raises:
        PlanError: no plan fits the devices, the layers, the batch and the memory.
    """
    effort = effort or Effort()
    start = clock()
    first, *others = _candidates(task, effort=effort, seed=seed)[: effort.num_valued]
    best = _Best(objective=objective, plan=first, value=objective(first))
    for plan in others:
        if clock() - start > effort.seconds:
            break
        best.offer(plan)
    random = np.random.default_rng(seed)
    for _ in range(effort.num_changes):
        if clock() - start > effort.seconds:
            break
        changed = neighbour(task, best.plan, random=random)
        if changed != best.plan and _fits(task, changed):
            best.offer(changed)
    used = {device for row in best.plan.placement for device in row}
    return Decision(
        plan=best.plan,
        value=best.value,
        left_out=tuple(device for device in range(len(task.cluster)) if device not in used),
        num_valued=best.num_valued,
    )


@dataclass(slots=True, kw_only=True)
class _Best:
    """The best plan so far."""

    objective: Objective
    plan: Plan
    value: float
    num_valued: int = 1

    def offer(self, plan: Plan) -> None:
        """Take the plan if it is better."""
        value = self.objective(plan)
        self.num_valued += 1
        if value < self.value:
            self.plan, self.value = plan, value


def _candidates(task: Task, *, effort: Effort, seed: int) -> list[Plan]:
    """Return the best plan of each shape by its closed form, best first."""
    best = []
    for shape in shapes(task):
        plans = _plans(task, shape, microbatches=effort.microbatches, seed=seed)
        ranked = [(_estimated_s(task, plan), plan) for plan in plans if _fits(task, plan)]
        if ranked:
            best.append(min(ranked, key=lambda each: each[0]))
    if not best:
        raise PlanError(
            f"a plan fits into its devices: none does for {task.num_layers} layers, `batch` "
            f"{task.batch} and the {len(task.cluster)} devices of cluster {task.cluster.name!r}; "
            "take larger devices, a smaller model, or rematerialise"
        )
    return [plan for _, plan in sorted(best, key=lambda each: each[0])]


def _plans(task: Task, shape: Shape, *, microbatches: tuple[int, ...], seed: int) -> Iterator[Plan]:
    fitting = [size for size in microbatches if task.batch % (shape.replicas * size) == 0]
    for placement in placements(task, shape, seed=seed):
        for microbatch, schedule in product(fitting, _SCHEDULES):
            yield build(task, placement, microbatch=microbatch, schedule=schedule)


def _estimated_s(task: Task, plan: Plan) -> float:
    gradient = task.bytes_each.gradient
    return estimate(
        plan, task.cluster, task.profile, slow=task.slow, gradient_bytes=gradient
    ).step_s


def _fits(task: Task, plan: Plan) -> bool:
    return not overfull(plan, task.profile, task.cluster, each=task.bytes_each)
