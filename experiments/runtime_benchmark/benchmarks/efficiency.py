"""The overhead of a pipeline beyond the bubble of its schedule.

What remains above a ratio of 1 is messages, dispatch, the bookkeeping of gradients, and computes of
uneven length.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.training import Run, System, training_claim
from experiments.table import Row, grouped, numbers

_AIM = 1.05


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs of this claim."""
    return tuple(Run(system=System.JAXPIPE, how=how) for how in cases["efficiency"]["schedules"])


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row per schedule."""
    columns = ("step_s", "ratio", "ratio_pipeline", "bubble", "ideal_bubble", "tokens_per_s")
    return [
        {
            "schedule": schedule,
            "steps": len(rows),
            **{column: median(numbers(rows, column)) for column in columns},
            "lowest_ratio": min(numbers(rows, "ratio")),
            "aim": f"ratio <= {_AIM}",
        }
        for (schedule,), rows in grouped(raw, "how").items()
    ]


EFFICIENCY = training_claim(
    aim="a step takes at most 1.05 of its stages' own computes with the schedule's ideal bubble",
    runs=runs,
    summarise=summarise,
    draw=bars(
        "how",
        value="ratio",
        title="Step over the ideal of its own computes (measured; a dot is a step; dashed: aim)",
        aim=_AIM,
    ),
)
