"""What plans are worth: seconds, dollars and watt-hours of a step, their objective and front.

========================  =====================================================================
objective `time`          the fastest step within the limits of dollars and watt-hours
objective `dollars`       the cheapest step within those of seconds and watt-hours
objective `energy`        the step of the least watt-hours within those of seconds and dollars
========================  =====================================================================

The Pareto front has the plans to which no other is as good in all that is known, among those that
the search has valued. All plans have as many tokens, so dollars per token need no front of their
own.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.propose.options import Goal, SearchOptions
from jaxpipe.simulate import (
    Conditions,
    check_power,
    check_prices,
    extrapolated_step_s,
    step_dollars,
    step_watt_hours,
)
from jaxpipe.simulate.outer_step import mean_step_s

_FORBIDDEN = 1e15
"""Larger than any objective; times the excess over a limit, so that less of it is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The seconds, the dollars and the watt-hours of a step of a plan; None if unknown."""

    seconds: float
    dollars: float | None = None
    watt_hours: float | None = None
    plan: Plan

    @property
    def costs(self) -> tuple[float, ...]:
        """All that is known of it."""
        return tuple(
            each for each in (self.seconds, self.dollars, self.watt_hours) if each is not None
        )


@dataclass(slots=True, kw_only=True)
class Appraisal:
    """The objective of a search that weighs more than seconds; keeps the Pareto front.

    A step has `tokens`.
    """

    options: SearchOptions
    conditions: Conditions
    tokens: int
    front: list[Worth] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check that prices and powers are known as far as the options need them.

        Raises:
            PlanError: they are not.
        """
        if self.options.counts_dollars:
            check_prices(self.conditions.cluster)
        if self.options.counts_energy:
            check_power(self.conditions.cluster)

    def __call__(self, plan: Plan) -> float:
        """Return the objective of a plan: the smaller, the better."""
        short_s = mean_step_s(plan, self.conditions, step_s=extrapolated_step_s)
        worth = worth_of(plan, self.conditions, step_s=short_s)
        if not is_beaten(worth, self.front):
            worth = worth_of(plan, self.conditions, step_s=mean_step_s(plan, self.conditions))
            self.front = with_worth(self.front, worth)
        return self._objective(worth)

    def check_limits(self, plan: Plan) -> None:
        """Check that a plan keeps within the limits of the options.

        Raises:
            PlanError: it does not, so no plan that was found does.
        """
        worth = worth_of(plan, self.conditions, step_s=mean_step_s(plan, self.conditions))
        if self._excess(worth) > 1:
            units = ((worth.dollars, "dollars"), (worth.watt_hours, "watt-hours"))
            others = [f"{value:.4g} {unit}" for value, unit in units if value is not None]
            raise PlanError(
                "a plan keeps within the limits: none that was found does, the nearest takes "
                f"{worth.seconds:.4g} s and {' and '.join(others)} a step; raise "
                f"{' or '.join(self._options())}, or give `--budget` more seconds"
            )

    def _objective(self, worth: Worth) -> float:
        if (excess := self._excess(worth)) > 1:
            return _FORBIDDEN * excess
        values = {Goal.DOLLARS: worth.dollars, Goal.ENERGY: worth.watt_hours}
        value = values.get(self.options.objective, worth.seconds)
        assert value is not None, self.options
        return value

    def _excess(self, worth: Worth) -> float:
        """Return how many times a limit is exceeded; at most 1 within the limits."""
        return max((used / most for used, most in self._used(worth)), default=0.0)

    def _used(self, worth: Worth) -> Iterator[tuple[float, float]]:
        options, million = self.options, self.tokens / 1e6
        limits = (
            (worth.seconds, options.max_step_s),
            (worth.dollars, options.max_step_dollars),
            (worth.watt_hours, options.max_step_watt_hours),
        )
        yield from ((used, most) for used, most in limits if used is not None and most is not None)
        if worth.dollars is not None and options.max_dollars_per_million_tokens is not None:
            yield worth.dollars / million, options.max_dollars_per_million_tokens

    def _options(self) -> list[str]:
        names = (
            "max_step_s",
            "max_step_dollars",
            "max_dollars_per_million_tokens",
            "max_step_watt_hours",
        )
        given = [name for name in names if getattr(self.options, name) is not None]
        return [f"`--{name.replace('_', '-')}`" for name in given]


def worth_of(plan: Plan, conditions: Conditions, *, step_s: float) -> Worth:
    """Return what a step of a plan costs, as far as prices and powers are known."""
    dollars = watt_hours = None
    with suppress(PlanError):
        check_prices(conditions.cluster)
        dollars = step_dollars(plan, conditions, step_s=step_s)
    with suppress(PlanError):
        watt_hours = step_watt_hours(plan, conditions.cluster, step_s=step_s)
    return Worth(seconds=step_s, dollars=dollars, watt_hours=watt_hours, plan=plan)


def is_beaten(worth: Worth, front: Iterable[Worth]) -> bool:
    """Return whether another plan is as good in all that is known."""
    return any(
        all(theirs <= ours for theirs, ours in zip(other.costs, worth.costs, strict=True))
        for other in front
    )


def with_worth(front: Iterable[Worth], worth: Worth) -> list[Worth]:
    """Return the front with a plan that is not beaten, the fastest first."""
    kept = [other for other in front if not is_beaten(other, [worth])]
    return sorted([*kept, worth], key=lambda each: each.seconds)
