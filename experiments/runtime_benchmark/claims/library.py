"""The MPI library's own all-reduce and ours, over the same links, which the kernel shapes.

MPICH runs over TCP between network namespaces; its own sum and our algorithms, over `MpiTransport`
in the same processes, pass the same shaped links. Bandwidths only: there are no delays.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import topo
from experiments.runtime_benchmark.alpha_beta import alpha_beta_s
from experiments.runtime_benchmark.claim import Bench, CannotMeasureError, Claim, Row
from experiments.runtime_benchmark.namespaces import joined
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import run_commands
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.collective import AllReduceKind

_HERE = Path(__file__).parents[1]
_PROGRAM = "experiments.runtime_benchmark.programs.all_reduce"


def measure(bench: Bench) -> list[Row]:
    """Return a row for each round of each algorithm."""
    return bench.once({}, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    if bench.mpich_python is None:
        raise CannotMeasureError("`--mpich-python` names no Python that has jaxpipe and MPICH")
    case = bench.cases["library"]
    cluster = topo.load(str(_HERE / case["cluster"]))
    cluster = replace(cluster, latency_s=np.zeros_like(cluster.latency_s))
    tree = tuple(tuple(island) for island in case["tree"])
    python = str(bench.mpich_python)
    mpiexec = str(bench.mpich_python.parent / "mpiexec")
    start = (mpiexec, "-n", str(len(cluster)), "-bind-to", "none")
    with joined(cluster, scale=case["scale"]) as settings:
        found = run_commands([[*start, python, "-m", _PROGRAM]], dict(case), settings)
    return [
        {
            **row,
            "alpha_beta_s": ""
            if row["algorithm"] == AllReduceKind.LIBRARY
            else alpha_beta_s(
                AllReduceKind(row["algorithm"]),
                tree,
                cluster,
                num_bytes=case["num_bytes"],
                scale=case["scale"],
            ),
            "num_bytes": case["num_bytes"],
            "scale": case["scale"],
        }
        for row in found
    ]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each algorithm, the fastest first."""
    groups = grouped(raw, "algorithm")
    seconds = {name: median(numbers(rows, "seconds")) for (name,), rows in groups.items()}
    library_s = seconds[AllReduceKind.LIBRARY]
    return [
        {
            "algorithm": name,
            "seconds": seconds[name],
            "alpha_beta_s": groups[name,][0]["alpha_beta_s"],
            "times_as_fast_as_the_library": library_s / seconds[name],
        }
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the seconds of every round."""
    bars(
        {name: numbers(rows, "seconds") for (name,), rows in grouped(raw, "algorithm").items()},
        path,
        title="All-reduce between namespaces of two regions (emulated by the kernel, no delays)",
        unit="s",
    )


LIBRARY = Claim(
    aim="the best all-reduce is twice as fast as the MPI library's own over the same links",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
