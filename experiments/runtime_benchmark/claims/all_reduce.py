"""All-reduces over the shaped links of two regions, beside what latency and bandwidth alone take.

Every pair of ranks has a link of its own, slowed down by `scale`, so that eight ranks on few cores
are not what is measured. The MPI library cannot be shaped this way: its bytes do not pass our
transport (the claim `library` runs it). Here the algorithms that MPI libraries use for large arrays
stand in for it: `ring` and `halving` (recursive halving and doubling, by Rabenseifner), with the
ranks in their natural order, as a library takes them.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import topo
from experiments.runtime_benchmark.alpha_beta import alpha_beta_s
from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import run_ranks
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.collective import AllReduceKind

_HERE = Path(__file__).parents[1]
LIBRARY = ("ring", "halving")


def measure(bench: Bench) -> list[Row]:
    """Return a row for each round of each algorithm, with its seconds by latency and bandwidth."""
    return bench.once({}, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    case = bench.cases["all_reduce"]
    tree = tuple(tuple(island) for island in case["tree"])
    task = {**case, "cluster": str(_HERE / case["cluster"])}
    cluster = topo.load(task["cluster"])
    foreseen = {
        name: alpha_beta_s(
            AllReduceKind(name), tree, cluster, num_bytes=case["num_bytes"], scale=case["scale"]
        )
        for name in case["algorithms"]
    }
    return [
        {
            **row,
            "alpha_beta_s": foreseen[row["algorithm"]],
            "best_alpha_beta_s": min(foreseen.values()),
            "num_bytes": case["num_bytes"],
            "scale": case["scale"],
        }
        for row in run_ranks("all_reduce", task, num_ranks=sum(map(len, tree)))
    ]


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
            "alpha_beta_s": numbers(groups[name,], "alpha_beta_s")[0],
            "over_best_bound": seconds[name] / numbers(groups[name,], "best_alpha_beta_s")[0],
            "times_the_fastest": seconds[name] / fastest_s,
        }
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the seconds of every round, and the bound."""
    bars(
        {name: numbers(rows, "seconds") for (name,), rows in grouped(raw, "algorithm").items()},
        path,
        title="All-reduce over shaped links of two regions (emulated; dashed: best by alpha-beta)",
        unit="s",
        aim=numbers(raw, "best_alpha_beta_s")[0],
    )


ALL_REDUCE = Claim(
    aim="the best is within 15 % of its alpha-beta bound, and twice as fast as MPI's algorithms",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
