"""Exact search on small clusters of two GPU types, against the planner's search.

The model is OPT-350 with six of its 24 layers, so that all cuts can be tried as well: a layout is
any assignment of groups to replicas and stages, in any order, with any cut and microbatch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise
from math import inf
from typing import TypeVar

from experiments.sailor.judge import Judge
from experiments.sailor.published import ZONE, Model, Place, model
from experiments.table import Row
from jaxpipe.search.layout import Group, Layout, LayoutTask, Run, Stage, search_layout

_T = TypeVar("_T")

MOST_GPUS = 8
_TYPES = ("A100-40", "V100-16")
_LAYERS = 8
_BATCH = 64


def short_model() -> Model:
    """Return OPT-350 with its embedding, six layers and its head."""
    whole = model("OPT-350")

    def short(layers: tuple[_T, ...]) -> tuple[_T, ...]:
        return (*layers[: _LAYERS - 1], layers[-1])

    return replace(
        whole,
        costs={key: short(layers) for key, layers in whole.costs.items()},
        sizes={key: short(layers) for key, layers in whole.sizes.items()},
    )


def small_clusters(most: int = MOST_GPUS) -> list[tuple[int, int]]:
    """Return the numbers of A100s and V100s of all small clusters with both."""
    return [(a, total - a) for total in range(2, most + 1) for a in range(1, total)]


def small_task(counts: tuple[int, int]) -> LayoutTask:
    """Return the search on a small cluster, with the judge as objective."""
    judge = Judge(short_model(), _BATCH)
    return LayoutTask(
        gpus={(gpu, ZONE): count for gpu, count in zip(_TYPES, counts, strict=True)},
        num_layers=_LAYERS,
        batch=_BATCH,
        microbatches=(1, 2, 4, 8),
        costs=judge,
        objective=lambda layout: judge.step_s(layout) if judge.fits(layout) else inf,
    )


def all_layouts(task: LayoutTask) -> Iterator[Layout]:
    """Yield every layout: replicas, stages, groups in every order, cuts and microbatches."""
    total = sum(task.gpus.values())
    for microbatch in task.microbatches:
        groups = [
            Group(gpu, zone, tensor)
            for gpu, zone in task.gpus
            for tensor in task.costs.degrees(gpu, microbatch)
        ]
        for num_stages in range(1, min(total, task.num_layers) + 1):
            for num_replicas in range(1, total // num_stages + 1):
                for chosen in _chosen(groups, task.gpus, num_stages * num_replicas):
                    stages = tuple(
                        _runs(chosen[n * num_replicas : (n + 1) * num_replicas])
                        for n in range(num_stages)
                    )
                    for cut in _cuts(task.num_layers, num_stages):
                        yield Layout(cut=cut, stages=stages, microbatch=microbatch)


def _chosen(
    groups: Sequence[Group], left: Mapping[Place, int], num: int
) -> Iterator[tuple[Group, ...]]:
    """Yield all sequences of groups for which there are enough GPUs."""
    if num == 0:
        yield ()
        return
    for group in groups:
        place = (group.gpu, group.zone)
        if left[place] >= group.tensor:
            for rest in _chosen(groups, {**left, place: left[place] - group.tensor}, num - 1):
                yield (group, *rest)


def _runs(groups: Sequence[Group]) -> Stage:
    return tuple(Run(group, len(list(equal))) for group, equal in groupby(groups))


def _cuts(num_layers: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, num_layers), num_stages - 1):
        yield tuple(end - first for first, end in pairwise((0, *inner, num_layers)))


def exact_row(counts: tuple[int, int], *, limit_s: float = 60.0) -> Row:
    """Return the row of a cluster: the best of all layouts, and the search's."""
    task = small_task(counts)
    least, best, num_layouts = inf, None, 0
    for layout in all_layouts(task):
        num_layouts += 1
        value = task.objective(layout)
        if value < least:
            least, best = value, layout
    found = search_layout(small_task(counts), limit_s=limit_s)
    return {
        "a100": counts[0],
        "v100": counts[1],
        "layouts": num_layouts,
        "exact_s": least,
        "search_s": found.objective,
        "over_exact": found.objective / least,
        "seconds_of_search": found.seconds,
        "evaluated": found.num_evaluated,
        "exact": str(best),
        "searched": str(found.layout),
    }
