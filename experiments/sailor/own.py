"""jaxpipe's layouts for Sailor's scenarios, searched with its own simulated seconds as objective.

The search values tens of thousands of layouts, and a simulated step takes from a millisecond to a
second. So a closed form of the simulator orders them, and the best few are simulated::

    search ──closed form──► the best few ──simulated──► the best

With c(s) the seconds of a microbatch on stage s of S, w(s) those of its message to the next stage,
M microbatches, r(s) the ring all-reduce of its gradients and u(s) its optimizer, 1F1B takes

    steady   the largest of c(s), w(s) and (c(s) + ... + c(S-1) + 2 (w(s) + ...)) / (S - s)
    step     (M - 1) steady + sum of (c + 2 w), and of the last stage to end also r(s) + u(s)

The third term is the round trip of the S - s microbatches that 1F1B keeps in flight. It is exact
for equal stages without messages, which a test holds, and only ranks otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from math import inf

from experiments.sailor.planned import LIMIT_S, Question, best_known, own_step_s, question, task
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.table import Row
from jaxpipe.search.layout import (
    Group,
    Layout,
    LayoutCosts,
    LayoutSearch,
    Stage,
    StageCosts,
    facing,
    neighbours,
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


def ring_s(stage: Stage, costs: LayoutCosts, num_bytes: float) -> float:
    """Return the seconds of the all-reduce of a stage around the ring of its replicas."""
    num_replicas = sum(run.replicas for run in stage)
    if num_replicas == 1:
        return 0.0
    share = num_bytes / num_replicas
    pairs = {*neighbours(stage), (stage[-1].group, stage[0].group)}
    slowest = max(share / costs.gradient_rate(one, other, share) for one, other in pairs)
    return 2 * (num_replicas - 1) * slowest


def closed_form_s(layout: Layout, costs: LayoutCosts, *, batch: int) -> float:
    """Return the seconds of a step, as this module's docstring has them."""
    parts = [
        [costs.part(group, range(*ends), layout.microbatch) for group, _ in stage]
        for stage, ends in zip(layout.stages, pairwise([0, *accumulate(layout.cut)]), strict=True)
    ]
    compute_s = [max(part.forward_s + part.backward_s for part in stage) for stage in parts]
    num_bytes = costs.output_bytes(layout.microbatch)
    wire_s = [
        max(
            num_bytes / costs.activation_rate(*pair, num_bytes)
            for a, b, _ in facing(one, other)
            for pair in ((a, b), (b, a))
        )
        for one, other in pairwise(layout.stages)
    ]
    wire_s.append(0.0)
    steady_s, trip_s = max(*compute_s, *wire_s), 0.0
    # From the last stage on: what a microbatch takes from a stage to the end and back.
    for behind, (each_s, hop_s) in enumerate(zip(compute_s[::-1], wire_s[::-1], strict=True)):
        trip_s += each_s + 2 * hop_s
        steady_s = max(steady_s, trip_s / (behind + 1))
    end_s = (layout.num_microbatches(batch) - 1) * steady_s + trip_s
    last_s = 0.0
    for stage, of_stage, hop_s in zip(layout.stages, parts, wire_s, strict=True):
        reduced_s = ring_s(stage, costs, 4 * max(part.parameters for part in of_stage))
        last_s = max(last_s, end_s + reduced_s + max(part.update_s for part in of_stage))
        # The next stage ends earlier, by the backward of this one and its message.
        end_s -= max(part.backward_s for part in of_stage) + hop_s
    return last_s


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
