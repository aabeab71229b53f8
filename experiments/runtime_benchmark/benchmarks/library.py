"""The MPI library's own all-reduce and ours over the same links, shaped by the kernel.

MPICH runs over TCP between network namespaces; its own all-reduce and our algorithms, over
`MpiTransport` in the same processes, use the same shaped links. Only bandwidths are shaped: delays
need netem, a kernel module that many machines lack.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from experiments.emulated_links import CannotMeasureError, namespaces
from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.benchmarks.all_reduce import alpha_beta_s
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.runs import run_commands
from experiments.table import Row, grouped, numbers
from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.topo import with_slower_links
from jaxpipe.topo.emulate import EngineKind

_HERE = Path(__file__).parents[1]
_PROGRAM = "experiments.runtime_benchmark.programs.all_reduce"


def measurements(bench: Bench) -> list[Measurement]:
    """Return the one part: a row per round and algorithm."""
    return [Measurement(columns={}, measure=partial(_measure, bench))]


def _measure(bench: Bench) -> list[Row]:
    if bench.mpich_python is None:
        raise CannotMeasureError("it needs `--mpich-python`, a Python with jaxpipe and MPICH")
    case = bench.cases["library"]
    cluster = topo.load(str(_HERE / case["cluster"]))
    cluster = replace(cluster, latency_s=np.zeros_like(cluster.latency_s))
    tree = tuple(tuple(island) for island in case["tree"])
    python = str(bench.mpich_python)
    mpiexec = str(bench.mpich_python.parent / "mpiexec")
    start = (mpiexec, "-n", str(len(cluster)), "-bind-to", "none")
    slowed = with_slower_links(cluster, scale=case["scale"])
    with namespaces(slowed, kind=EngineKind.HTB) as settings:
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
    """Return a row per algorithm, the fastest first."""
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


LIBRARY = Claim(
    aim="the best all-reduce is twice as fast as the MPI library's own over the same links",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "algorithm",
        value="seconds",
        title="All-reduce between namespaces of two regions (emulated by the kernel, no delays)",
    ),
)
