"""jaxpipe's layouts for Sailor's scenarios, searched with the judge as objective."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from experiments.sailor.judge import Judge
from experiments.sailor.judged import judge_of
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.sailor.published import (
    Scenario,
    gpu_table,
    judged_plans,
    model,
    scenarios,
    table,
)
from experiments.table import Row
from jaxpipe.search.layout import Layout, LayoutSearch, LayoutTask, layout_step, search_layout
from jaxpipe.simulate import simulate

LIMIT_S = 6.0
"""Seconds of CPU of each search."""


@dataclass(frozen=True, slots=True)
class Question:
    """What counts in a scenario: seconds, dollars under a floor, or seconds under a budget."""

    scenario: Scenario
    judge: Judge

    def objective(self, layout: Layout) -> float:
        """Return the objective of a layout; infinite if it does not fit or breaks a limit."""
        return self.valued(layout, self.judge.step_s(layout)) if self.judge.fits(layout) else inf

    def valued(self, layout: Layout, seconds: float) -> float:
        """Return the objective of a layout whose step takes these seconds; infinite as above."""
        if self.scenario.min_steps_per_s is not None:
            is_fast = seconds * self.scenario.min_steps_per_s <= 1
            return self.judge.dollars(layout, seconds) if is_fast else inf
        most = self.scenario.max_dollars_per_step
        is_cheap = most is None or self.judge.dollars(layout, seconds) <= most
        return seconds if is_cheap else inf

    def bound(self, seconds: np.ndarray, gpus: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the least objective of layouts with these seconds and GPUs."""
        if self.scenario.min_steps_per_s is not None:
            is_fast = seconds * self.scenario.min_steps_per_s <= 1
            return np.where(is_fast, self._gpu_dollars(seconds, gpus), np.inf)
        if self.scenario.max_dollars_per_step is not None:
            is_cheap = self._gpu_dollars(seconds, gpus) <= self.scenario.max_dollars_per_step
            return np.where(is_cheap, seconds, np.inf)
        return seconds

    def _gpu_dollars(self, seconds: np.ndarray, gpus: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the dollars of the GPUs alone: bytes between zones may cost nothing."""
        total = np.zeros_like(seconds)
        for gpu, counts in gpus.items():
            total += counts * float(gpu_table()[gpu]["dollars_per_hour"]) / 3600 * seconds
        return total


def question(name: str) -> Question:
    """Return the question of a scenario."""
    return Question(scenarios()[name], judge_of(name))


def task(asked: Question, objective: Callable[[Layout], float] | None = None) -> LayoutTask:
    """Return the search for a question, or for another objective under its bound."""
    scenario, found = asked.scenario, asked.judge.model
    types = {gpu for gpu, _ in scenario.gpus}
    return LayoutTask(
        gpus=scenario.gpus,
        num_layers=found.num_layers,
        batch=scenario.batch,
        microbatches=tuple(sorted({size for gpu, size, _ in found.costs if gpu in types})),
        costs=asked.judge,
        objective=objective or asked.objective,
        bound=asked.bound,
    )


def plan(name: str, *, limit_s: float = LIMIT_S) -> LayoutSearch:
    """Return the best layout that is found for a scenario."""
    return search_layout(task(question(name)), limit_s=limit_s)


def best_known(name: str) -> float:
    """Return the least objective of the published layouts, of planners and of `best_known.csv`."""
    asked = question(name)
    found = [asked.objective(each.layout) for each in judged_plans() if each.scenario == name]
    stated = [float(row["step_s"]) for row in table("best_known") if row["scenario"] == name]
    return min(found + stated)


def own_step_s(layout: Layout, scenario: Scenario, *, blocking: bool) -> float:
    """Return the seconds of a step in jaxpipe's simulator, on the profiles alone."""
    costs = ProfiledCosts(model(scenario.model), KNOWN_BEFORE)
    step = layout_step(layout, costs, batch=scenario.batch, blocking=blocking)
    return max(span.end_s for span in simulate(step).spans)


def planned_row(name: str) -> Row:
    """Return the row of a scenario: the search, the judge's number, and our simulator's."""
    asked = question(name)
    found = plan(name)
    seconds = asked.judge.step_s(found.layout)
    return {
        "scenario": name,
        "planner_s": found.seconds,
        "step_s": seconds,
        "dollars": asked.judge.dollars(found.layout, seconds),
        "over_best_known": found.objective / best_known(name),
        "least_bound": found.bound / found.objective,
        "evaluated": found.num_evaluated,
        "own_step_s": own_step_s(found.layout, asked.scenario, blocking=False),
        "own_blocking_s": own_step_s(found.layout, asked.scenario, blocking=True),
        "plan": str(found.layout),
    }
