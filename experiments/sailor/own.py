"""jaxpipe's layouts for Sailor's scenarios, searched with its own simulated seconds as objective.

The search values tens of thousands of layouts, and a simulated step takes from a millisecond to a
second. So a closed form of the simulator orders them, and the best few are simulated::

    search ──closed form──► the best few ──simulated──► the best

The closed form is `jaxpipe.search.layout.closed_form_s`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from experiments.sailor.planned import LIMIT_S, Question, best_known, own_step_s, question, task
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.table import Row
from jaxpipe.search.layout import (
    Group,
    Layout,
    LayoutCosts,
    LayoutSearch,
    StageCosts,
    closed_form_s,
    search_layout,
)

_FEW = 12
"""The layouts that are simulated."""


class Remembered:
    """The costs of a model, each looked up once: a search asks for the same ones many times."""

    def __init__(self, costs: ProfiledCosts) -> None:
        self.part = cache(costs.part)
        self.output_bytes = cache(costs.output_bytes)
        self.activation_rate = cache(costs.activation_rate)
        self.gradient_rate = cache(costs.gradient_rate)


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Costs of stages of which messages take no time from computing: for cuts and for bounds."""

    costs: StageCosts
    profiled: LayoutCosts
    num_parameters: int

    def degrees(self, gpu: str, microbatch: int) -> Sequence[int]:
        """Return the tensor degrees that were profiled."""
        return self.costs.degrees(gpu, microbatch)

    def layer_sums(self, group: Group, microbatch: int) -> Sequence[float]:
        """Return the seconds of the first 0, 1, 2... layers."""
        return self.costs.layer_sums(group, microbatch)

    def fits_gpus(
        self, group: Group, layers: tuple[int, int], num_live: int, microbatch: int
    ) -> bool:
        """Return whether layers fit the GPUs of a group, after the judge."""
        return self.costs.fits_gpus(group, layers, num_live, microbatch)

    def hop_s(self, one: Group, other: Group, microbatch: int) -> float:  # noqa: ARG002
        """Return no seconds: a message overlaps with the computes of its ranks."""
        return 0.0

    def least_reduce_s(self, kind: Group, part: float, num_replicas: int) -> float:
        """Return the seconds of a ring between equal groups, for a part of the parameters."""
        num_bytes = 4 * part * self.num_parameters / num_replicas
        if num_replicas == 1:
            return 0.0
        rate = self.profiled.gradient_rate(kind, kind, num_bytes)
        return 2 * (num_replicas - 1) * num_bytes / rate


def own_search(asked: Question, *, limit_s: float = LIMIT_S) -> tuple[LayoutSearch, float]:
    """Return the search by the closed form with the best layout simulated, and its objective."""
    scenario, judge = asked.scenario, asked.judge
    costs = Remembered(ProfiledCosts(judge.model, KNOWN_BEFORE))

    def by(seconds_of: Callable[[Layout], float]) -> Callable[[Layout], float]:
        return lambda layout: (
            asked.valued(layout, seconds_of(layout)) if judge.fits(layout) else inf
        )

    overlapped = Overlapped(judge, costs, sum(size.parameters for size in judge.model.sizes[1]))
    closed = by(lambda layout: closed_form_s(layout, costs, batch=scenario.batch))
    found = search_layout(
        replace(task(asked, closed), costs=overlapped, overlaps=True),
        limit_s=limit_s,
        num_best=_FEW,
    )
    exact = by(lambda layout: own_step_s(layout, scenario, blocking=False))
    values = {layout: exact(layout) for layout in found.best}
    best = min(values, key=values.__getitem__)
    return replace(found, layout=best), values[best]


def own_row(name: str) -> Row:
    """Return the columns of a scenario for the search with our own objective."""
    asked = question(name)
    found, objective = own_search(asked)
    judged_s = asked.judge.step_s(found.layout)
    return {
        "own_planner_s": found.seconds,
        "own_planned_s": own_step_s(found.layout, asked.scenario, blocking=False),
        "own_judged_s": judged_s,
        "own_over_best_known": asked.valued(found.layout, judged_s) / best_known(name),
        "own_bound": found.floor,
        "own_gap": objective / found.floor - 1,
        "own_plan": str(found.layout),
    }
