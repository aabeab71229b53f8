"""jaxpipe's own plan and DT-FM's, on the same clusters with the same constants, and an ablation.

The ablation replaces one choice at a time by DT-FM's: the order of replicas in an all-reduce, the
overlap, the schedule, the eight stages.
"""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache, partial

from experiments.dtfm_iteration_time.prediction import (
    BATCHES,
    LAYERS,
    STEP,
    Run,
    line,
    line_between,
)
from experiments.progress import counted_results
from jaxpipe import topo
from jaxpipe.baselines.published.jaxpipe_on_dtfm import Choices, jaxpipe_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.simulate import Constants, simulate_ends

CLUSTERS = (
    "case1-datacenter",
    "case2-spot",
    "case3-universities",
    "case4-regional",
    "case5-worldwide",
    "fluidstack-2region",
)

_THEIR_STAGES = (8,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Simulated seconds of one size on one cluster; `without[choice]` replaces one choice."""

    cluster: str
    layers: int
    batch: int
    dtfm_s: float
    ours_s: float
    num_stages: int
    without: Mapping[str, float]


def compare(constants: Constants, executor: Executor) -> tuple[Comparison, ...]:
    """Return the comparison of every size on every cluster."""
    sizes = [(cluster, layers) for cluster in CLUSTERS for layers in LAYERS]
    rows = executor.map(partial(_compare, constants=constants), *zip(*sizes, strict=True))
    rows = counted_results(rows, "own plans", total=len(sizes))
    return tuple(comparison for row in rows for comparison in row)


def _compare(cluster: str, layers: int, *, constants: Constants) -> tuple[Comparison, ...]:
    run = Run(cluster=cluster, system=System.DTFM, layers=layers, seed=0)
    theirs = line(run, constants=constants)
    own = cache(partial(_line, cluster, layers, constants=constants))
    stages = {number: own(Choices(num_stages=(number,))) for number in Choices().num_stages}
    comparisons = []
    for batch in BATCHES:
        best = min(stages, key=lambda number: _at(stages[number], batch))
        full = Choices(num_stages=(best,))
        without = {
            "order": own(replace(full, order=False)),
            "overlap": own(replace(full, overlap=False)),
            "schedule": own(replace(full, schedule=False)),
            "cut": stages[_THEIR_STAGES[0]],
        }
        comparisons.append(
            Comparison(
                cluster=cluster,
                layers=layers,
                batch=batch,
                dtfm_s=_at(theirs, batch),
                ours_s=_at(stages[best], batch),
                num_stages=best,
                without={name: _at(each, batch) for name, each in without.items()},
            )
        )
    return tuple(comparisons)


def _line(
    cluster: str, layers: int, choices: Choices, *, constants: Constants
) -> tuple[float, float]:
    """Return the line of a plan's seconds over the batch: intercept, and seconds per `STEP`.

    Fewer stages are more pipelines, so more samples fill the 64 microbatches of GPipe.
    """
    num_steps = max(1, _THEIR_STAGES[0] // min(choices.num_stages))
    one_s, twice_s = (
        simulate_ends(
            jaxpipe_step(
                topo.load(cluster),
                workload=Workload(num_layers=layers, batch=number * STEP),
                constants=constants,
                choices=choices,
            )
        ).seconds
        for number in (num_steps, 2 * num_steps)
    )
    return line_between(one_s, twice_s, num_steps=num_steps)


def _at(through: tuple[float, float], batch: int) -> float:
    return through[0] + through[1] * batch / STEP
