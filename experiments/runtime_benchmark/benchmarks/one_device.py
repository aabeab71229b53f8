"""Two ranks on two cores compared with one core: a jitted step in each form, and a rank alone.

A rank computes products and attention as the steps do not. Two independent copies of a step, one on
each core, give the upper bound of the machine, whose cores share the memory.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.training import REPLICAS, Run, System, training_claim
from experiments.table import Row, grouped, numbers


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs: one step in each form, a rank, two copies of the first form, pipelines."""
    case = cases["one_device"]
    alone = tuple(Run(system=System.ONE_DEVICE, how=form, cores=1) for form in case["forms"])
    rank = Run(system=System.JAXPIPE, how=REPLICAS, cores=1, is_required=False)
    twice = Run(system=System.ONE_DEVICE, how=case["forms"][0], is_required=False)
    pipelines = (Run(system=System.JAXPIPE, how=how) for how in case["schedules"])
    return (*alone, rank, twice, *pipelines)


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row per run, with its speedup over the fastest one on one core."""
    groups = grouped(raw, "system", "cores", "how")
    speed = {key: median(numbers(rows, "tokens_per_s")) for key, rows in groups.items()}
    alone = max(tokens for (_, cores, _), tokens in speed.items() if cores == "1")
    return [
        {
            "system": system,
            "cores": cores,
            "how": how,
            "tokens_per_s": speed[system, cores, how],
            "compile_s": median(numbers(rows, "compile_s")),
            "speedup": speed[system, cores, how] / alone,
            "aim": "speedup >= 1.85" if system == System.JAXPIPE and cores != "1" else "",
        }
        for (system, cores, how), rows in groups.items()
    ]


ONE_DEVICE = training_claim(
    aim="two ranks are at least 1.85 times as fast as one jitted step on one core",
    runs=runs,
    summarise=summarise,
    draw=bars(
        "how",
        "cores",
        value="tokens_per_s",
        title="One jitted step on one core, and pipelines on two (measured; a dot is a step)",
    ),
)
