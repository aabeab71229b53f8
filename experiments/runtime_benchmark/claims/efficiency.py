"""What a pipeline loses beyond the bubble of its schedule.

What is left above 1 are messages, dispatch, the bookkeeping of gradients, and uneven times.
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
    """Return the runs that this claim looks at."""
    return tuple(Run(system=System.JAXPIPE, how=how) for how in cases["efficiency"]["schedules"])


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step of each schedule."""
    return of(bench.training(), runs(bench.cases))


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each schedule."""
    columns = ("step_s", "ratio", "ratio_pipeline", "bubble", "ideal_bubble", "tokens_per_s")
    return [
        {
            "schedule": schedule,
            "steps": len(rows),
            **{column: median(numbers(rows, column)) for column in columns},
            "lowest_ratio": min(numbers(rows, "ratio")),
            "aim": "ratio <= 1.05",
        }
        for (schedule,), rows in grouped(raw, "how").items()
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the ratio of every step."""
    bars(
        {schedule: numbers(rows, "ratio") for (schedule,), rows in grouped(raw, "how").items()},
        path,
        title="Step over the ideal of its own computes (measured; a dot is a step; dashed: aim)",
        unit="ratio",
        aim=1.05,
    )


EFFICIENCY = Claim(
    aim="a step takes at most 1.05 of its stages' own computes with the schedule's ideal bubble",
    runs=runs,
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
