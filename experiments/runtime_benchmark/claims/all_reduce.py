"""All-reduces over the shaped links of two regions, beside their closed forms.

The links are slowed down by `scale`, so that eight ranks on few cores are not what is measured. The
MPI library cannot be shaped: its bytes do not pass our transport. In its place stand the algorithms
that MPI libraries use for large arrays, over the same links: `ring` and `halving` (recursive
halving and doubling, by Rabenseifner), with ranks in their natural order as a library takes them.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

import topo
from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import run_ranks
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.plan.cost import Links, links_between
from jaxpipe.plan.cost.fastest import algorithms_s

_HERE = Path(__file__).parents[1]
LIBRARY = ("ring", "halving")


def measure(bench: Bench) -> list[Row]:
    """Return a row for each round of each algorithm, with its closed form."""
    case = bench.cases["all_reduce"]
    tree = tuple(tuple(island) for island in case["tree"])
    num_ranks = sum(map(len, tree))
    task = {**case, "cluster": str(_HERE / case["cluster"])}
    closed = algorithms_s(
        _links(task["cluster"], num_ranks, scale=case["scale"]),
        tree,
        num_bytes=case["num_bytes"],
    )
    by_name = {kind.value: seconds for kind, seconds in closed.items()}
    return [
        {
            **row,
            "closed_form_s": by_name[row["algorithm"]],
            "best_closed_form_s": min(closed.values()),
            "num_bytes": case["num_bytes"],
            "scale": case["scale"],
        }
        for row in run_ranks("all_reduce", task, num_ranks=num_ranks)
    ]


def _links(cluster: str, num_ranks: int, *, scale: float) -> Links:
    links = links_between(topo.load(cluster), tuple(range(num_ranks)))
    return Links(
        latency_s=scale * np.asarray(links.latency_s),
        seconds_per_byte=scale * np.asarray(links.seconds_per_byte),
    )


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each algorithm, the fastest first."""
    groups = grouped(raw, "algorithm")
    seconds = {name: median(numbers(rows, "seconds")) for (name,), rows in groups.items()}
    fastest_s = min(seconds.values())
    return [
        {
            "algorithm": name,
            "used by MPI libraries": "yes" if name in LIBRARY else "",
            "seconds": seconds[name],
            "closed_form_s": numbers(groups[name,], "closed_form_s")[0],
            "over_best_bound": seconds[name] / numbers(groups[name,], "best_closed_form_s")[0],
            "times_the_fastest": seconds[name] / fastest_s,
        }
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the seconds of every round, and the bound."""
    bars(
        {name: numbers(rows, "seconds") for (name,), rows in grouped(raw, "algorithm").items()},
        path,
        title="All-reduce over shaped links of two regions (emulated; dashed: best closed form)",
        unit="s",
        aim=numbers(raw, "best_closed_form_s")[0],
    )


ALL_REDUCE = Claim(
    aim="the best is within 15 % of its alpha-beta bound, and twice as fast as MPI's algorithms",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
