"""The state of a search: the best plan so far, what was tried, and the effort that is left.

Plans are compared by their value, and for the sake of simplicity

- a schedule without a name counts as 2 % worse: it makes a plan longer and less clear; so do
  chunks of pipelines of one rank, for which a run compiles up to three kinds of stages;
- of equal plans the one that needs less memory is better, then the one whose schedule is listed
  first: 1F1B rather than eager 1F1B, where both are the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isclose
from typing import TypeAlias

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.plan.cost.memory import stage_memory
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.build_plan import is_possible, lacking_bytes
from jaxpipe.search.shapes import has_one_order, shape_name
from jaxpipe.search.task import Task

Objective: TypeAlias = Callable[[Plan], float]
"""The cost of a plan, to be minimised: for example the simulated seconds of its step."""

HANDICAP = 1.02
"""A schedule without a name, or chunks of one rank, have to be better by so much."""

_EQUAL = 1e-13
"""Values of equal schedules differ by their sums in another order, relatively by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The effort of a search: its seconds, the shapes to value first, the random changes, a seed.

    A search that ends before `seconds` gives the same result in every run.

    Raises:
        PlanError: a number is out of its range.
    """

    seconds: float = inf
    num_valued: int = 8
    num_changes: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_valued < 1 or self.num_changes < 0 or not self.seconds > 0:
            raise PlanError(
                "`num_valued` must be at least 1, `num_changes` at least 0 and `seconds` above 0, "
                f"not {self.num_valued}, {self.num_changes} and {self.seconds}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that was valued; `lacking` are the bytes by which it exceeds a device, at most."""

    plan: Plan
    value: float
    lacking: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether it has a value, or lacks memory; else it breaks what is fixed."""
        return self.value < inf or self.lacking > 0


class Best:
    """The best plan so far; generators read it, and the loop offers it what they yield."""

    def __init__(
        self,
        task: Task,
        objective: Objective,
        effort: Effort,
        *,
        bound: Objective,
        clock: Callable[[], float],
        observe: Callable[[int], None],
    ) -> None:
        self.plan: Plan | None = None
        self.value = inf
        self.num_valued = 0
        self.effort = effort
        self.random = np.random.default_rng(effort.seed)
        self.trials: dict[Plan, Trial] = {}
        self.by_shape: dict[str, Trial] = {}
        self._task = task
        self._objective = objective
        self._bound = bound
        self._clock = clock
        self._observe = observe
        self._start_s = clock()

    @property
    def even_plan(self) -> Plan | None:
        """The best plan so far whose replicas are alike, each rank of one device."""
        even = (t for t in self.trials.values() if t.plan.is_even and not t.plan.has_groups)
        found = min(even, key=lambda trial: trial.value, default=None)
        return None if found is None or found.value == inf else found.plan

    def spent(self) -> float:
        """Return the fraction of the seconds that is spent; 0 without a limit."""
        return (self._clock() - self._start_s) / self.effort.seconds

    def left_s(self, until: float = 1.0) -> float:
        """Return the seconds that are left until a fraction of them is spent."""
        return max(0.0, (until - self.spent()) * self.effort.seconds)

    def offer(self, plan: Plan) -> Trial:
        """Value a plan that fits and keeps what is fixed, and keep it if it is the best."""
        if (known := self.trials.get(plan)) is not None:
            return known
        if not is_possible(plan) or not self._task.fixed.keeps(plan):
            return self._remember(Trial(plan=plan, value=inf))
        if lacking := lacking_bytes(self._task, plan):
            return self._remember(Trial(plan=plan, value=inf, lacking=lacking))
        value = self._objective(plan)
        self.num_valued += 1
        self._observe(self.num_valued)
        if self._is_better(plan, value):
            self.plan, self.value = plan, value
        return self._remember(Trial(plan=plan, value=value))

    def may_win(self, plan: Plan) -> bool:
        """Return whether the bound of a plan leaves it a chance against the best one."""
        if self.plan is None:
            return True
        return self._bound(plan) * _handicap(plan) < self.value * _handicap(self.plan)

    def _is_better(self, plan: Plan, value: float) -> bool:
        if self.plan is None:
            return True
        value, least = value * _handicap(plan), self.value * _handicap(self.plan)
        if isclose(value, least, rel_tol=_EQUAL):
            return self._complexity(plan) < self._complexity(self.plan)
        return value < least

    def _complexity(self, plan: Plan) -> tuple[int, int]:
        """Return the bytes that all ranks need together, and the place of the schedule."""
        task, kinds = self._task, list(ScheduleKind)
        num_bytes = sum(
            rank.total
            for replica in range(plan.num_replicas)
            for rank in stage_memory(plan, task.profile, each=task.bytes_each, replica=replica)
        )
        kind = plan.schedule
        return num_bytes, kinds.index(kind) if isinstance(kind, ScheduleKind) else len(kinds)

    def _remember(self, trial: Trial) -> Trial:
        self.trials[trial.plan] = trial
        name = shape_name(trial.plan)
        known = self.by_shape.get(name)
        if known is None or (trial.value, trial.lacking) < (known.value, known.lacking):
            self.by_shape[name] = trial
        return trial


def _handicap(plan: Plan) -> float:
    in_chunks = plan.num_chunks > 1 and has_one_order(plan)
    return HANDICAP if in_chunks or not isinstance(plan.schedule, ScheduleKind) else 1.0


Generator: TypeAlias = Callable[[Task, Best], Iterator[Plan]]
"""What yields plans to try. It is lazy: it may continue from the best plan at that time."""
