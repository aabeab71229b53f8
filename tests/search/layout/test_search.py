"""The search for a layout against all layouts, its bounds, and other objectives than seconds."""

from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from experiments.sailor.exact import all_layouts, exact_row, small_clusters, small_task
from jaxpipe.errors import PlanError
from jaxpipe.search.layout import Layout, search_layout
from jaxpipe.search.layout.candidates import candidates
from jaxpipe.search.layout.greedy_cut import greedy_cut


@pytest.mark.parametrize("counts", small_clusters(4))
def test_the_search_is_exact_on_small_clusters(counts: tuple[int, int]):
    assert exact_row(counts)["over_exact"] == pytest.approx(1.0)


def test_no_layout_is_better_than_the_bound_of_its_candidate():
    task = small_task((2, 2))
    bounds = {
        (each.microbatch, tuple(sorted(each.stages))): each.bound
        for group in candidates(task).values()
        for each in group
    }
    checked = 0
    for layout in all_layouts(task):
        key = (layout.microbatch, tuple(sorted(layout.stages)))
        if key in bounds:
            assert task.objective(layout) >= bounds[key] * (1 - 1e-12), layout
            checked += 1
    assert checked > 100


def test_the_greedy_cut_has_the_least_slowest_stage():
    """Of a pipeline of three stages, without messages: against all cuts."""
    task = small_task((2, 1))
    costs = task.costs
    layouts = [each for each in all_layouts(task) if each.num_stages == 3 and each.microbatch == 2]
    by_stages: dict[tuple[object, ...], list[Layout]] = {}
    for layout in layouts:
        by_stages.setdefault(layout.stages, []).append(layout)
    assert len(by_stages) == 3

    def slowest_s(layout: Layout) -> float:
        first, slowest = 0, 0.0
        for number, (layers, stage) in enumerate(zip(layout.cut, layout.stages, strict=True)):
            sums = costs.layer_sums(stage[0].group, 2)
            slowest = max(slowest, sums[first + layers] - sums[first] + hops_s(layout, number))
            first += layers
        return slowest

    def hops_s(layout: Layout, number: int) -> float:
        groups = [stage[0].group for stage in layout.stages]
        sides = [n for n in (number - 1, number + 1) if 0 <= n < len(groups)]
        return sum(costs.hop_s(groups[number], groups[n], 2) for n in sides)

    for stages, same in by_stages.items():
        cut = greedy_cut(costs, same[0].stages, num_layers=8, microbatch=2)
        assert cut is not None, stages
        least = min(slowest_s(each) for each in same)
        assert slowest_s(replace(same[0], cut=cut)) == pytest.approx(least, rel=1e-3)


def test_any_objective_counts():
    """The fewest GPUs under a limit of seconds, and its bound."""
    seconds = small_task((4, 4)).objective
    limit_s = 1.2 * search_layout(small_task((2, 2)), limit_s=5).objective

    def fewest(layout: Layout) -> float:
        return float(sum(layout.gpus().values())) if seconds(layout) <= limit_s else inf

    def bound(least_s: np.ndarray, gpus: dict[str, np.ndarray]) -> np.ndarray:
        return np.where(least_s <= limit_s, sum(gpus.values()), np.inf)

    task = replace(small_task((4, 4)), objective=fewest, bound=bound)
    found = search_layout(task, limit_s=10)
    assert found.objective <= 4
    assert seconds(found.layout) <= limit_s


def test_without_enough_memory_there_is_no_layout():
    task = replace(small_task((1, 1)), objective=lambda _: inf)
    with pytest.raises(PlanError, match="no layout has a finite objective"):
        search_layout(task, limit_s=1)


@pytest.mark.parametrize(
    ("field", "value"), [("gpus", {}), ("batch", 0), ("microbatches", ()), ("most_stages", 0)]
)
def test_a_task_checks_its_numbers(field: str, value: object):
    with pytest.raises(PlanError, match=f"`{field}` must"):
        replace(small_task((1, 1)), **{field: value})


def test_all_layouts_are_different_and_use_what_there_is():
    task = small_task((2, 1))
    layouts = list(all_layouts(task))
    assert len(set(layouts)) == len(layouts) == 337
    assert all(
        layout.gpus()[place] <= task.gpus[place] for layout in layouts for place in task.gpus
    )
    assert max(prod([each.num_stages, each.num_replicas]) for each in layouts) == 3
