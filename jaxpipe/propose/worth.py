"""What plans are worth: seconds and dollars of a step, the objective of them, and their front.

========================  ========================================================
objective `time`          the fastest step, of those that cost `--max-step-dollars` at most
objective `dollars`       the cheapest step, of those that take `--max-step-s` at most
========================  ========================================================

The Pareto front has the plans to which no other is both as fast and as cheap, among those that the
search has valued.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.propose.request import Goal, PlanRequest
from jaxpipe.simulate import (
    Conditions,
    extrapolated_step_s,
    plan_step,
    plan_step_s,
    step_dollars,
)

_FORBIDDEN = 1e15
"""Larger than any objective; times the excess over a limit, so that less of it is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The seconds and the dollars of a step of a plan."""

    seconds: float
    dollars: float
    plan: Plan


@dataclass(slots=True, kw_only=True)
class Appraisal:
    """The objective of a search for dollars, or under a limit of them; keeps the Pareto front."""

    request: PlanRequest
    conditions: Conditions
    front: list[Worth] = field(default_factory=list)

    def __call__(self, plan: Plan) -> float:
        """Return the objective of a plan: the smaller, the better."""
        worth = self._worth(plan, extrapolated_step_s(plan, self.conditions))
        if not is_beaten(worth, self.front):
            worth = self._worth(plan, plan_step_s(plan, self.conditions))
            self.front = with_worth(self.front, worth)
        return self._objective(worth)

    def check_limits(self, plan: Plan) -> None:
        """Check that a plan keeps within the limits of the request.

        Raises:
            PlanError: it does not, so no plan that was found does.
        """
        worth = self._worth(plan, plan_step_s(plan, self.conditions))
        if self._excess(worth) > 1:
            raise PlanError(
                f"a plan keeps within `--max-step-s` and `--max-step-dollars`: none that was found "
                f"does, the nearest takes {worth.seconds:.4g} s and {worth.dollars:.4g} dollars a "
                "step; raise the limit, or give `--budget` more seconds"
            )

    def _worth(self, plan: Plan, seconds: float) -> Worth:
        dollars = step_dollars(plan, plan_step(plan, self.conditions), step_s=seconds)
        return Worth(seconds=seconds, dollars=dollars, plan=plan)

    def _objective(self, worth: Worth) -> float:
        if (excess := self._excess(worth)) > 1:
            return _FORBIDDEN * excess
        return worth.dollars if self.request.objective is Goal.DOLLARS else worth.seconds

    def _excess(self, worth: Worth) -> float:
        """Return how many times a limit is exceeded; at most 1 within the limits."""
        return max(
            worth.seconds / (self.request.max_step_s or inf),
            worth.dollars / (self.request.max_step_dollars or inf),
        )


def is_beaten(worth: Worth, front: Iterable[Worth]) -> bool:
    """Return whether another plan is as fast and as cheap."""
    return any(other.seconds <= worth.seconds and other.dollars <= worth.dollars for other in front)


def with_worth(front: Iterable[Worth], worth: Worth) -> list[Worth]:
    """Return the front with a plan that is not beaten, the fastest first."""
    kept = [other for other in front if not is_beaten(other, [worth])]
    return sorted([*kept, worth], key=lambda each: each.seconds)
