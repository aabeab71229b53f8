"""Two ranks on two cores against one jitted step on one core.

What two such steps do at once, one on each core with nothing between them, is what the machine
allows: its cores share a memory, and perhaps more.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.tables import grouped, numbers
from experiments.runtime_benchmark.training import Run, System, of


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs: the whole model in each form, the first of them twice, and pipelines."""
    case = cases["one_device"]
    alone = tuple(Run(system=System.ONE_DEVICE, how=form, cores=1) for form in case["forms"])
    twice = Run(system=System.ONE_DEVICE, how=case["forms"][0])
    pipelines = (Run(system=System.JAXPIPE, how=how) for how in case["schedules"])
    return (*alone, twice, *pipelines)


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step."""
    return of(bench.training(), runs(bench.cases))


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each way, with its speed over that of the faster form on one core."""
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
            "aim": "speedup >= 1.85" if system == System.JAXPIPE else "",
        }
        for (system, cores, how), rows in groups.items()
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the speed of every step."""
    bars(
        {
            f"{how}\n{cores} core{'s' if cores != '1' else ''}": numbers(rows, "tokens_per_s")
            for (cores, how), rows in grouped(raw, "cores", "how").items()
        },
        path,
        title="One jitted step on one core, and pipelines on two (measured; a dot is a step)",
        unit="tokens/s",
    )


ONE_DEVICE = Claim(
    aim="two ranks are at least 1.85 times as fast as one jitted step on one core",
    runs=runs,
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
