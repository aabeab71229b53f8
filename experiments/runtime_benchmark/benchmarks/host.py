"""Microseconds of a rank per instruction, of a model so small that it computes next to nothing.

A step has a forward and a backward for each microbatch; with two ranks also the two messages
between them. What a rank takes is that of the host: Python, dispatch, MPI.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import lines
from experiments.runtime_benchmark.runs import check_cores, run_ranks
from experiments.table import Row, grouped, numbers

_INSTRUCTIONS = {1: 2, 2: 4}
"""Of a microbatch on a rank, by the number of ranks: computes, and two messages."""


def measurements(bench: Bench) -> list[Measurement]:
    """Return a part per round, number of ranks and number of microbatches: a row per step."""
    check_cores(needed=2)
    case = bench.cases["host"]
    return [
        Measurement(
            columns={"round": number, "ranks": ranks, "microbatches": microbatches},
            measure=partial(_rows, case, ranks=ranks, microbatches=microbatches),
        )
        for number in range(case["rounds"])
        for ranks in _INSTRUCTIONS
        for microbatches in case["microbatches"]
    ]


def _rows(case: dict[str, Any], *, ranks: int, microbatches: int) -> list[Row]:
    plan = {"replicas": 1, "stages": ranks, "microbatch": 1, "schedule": "1f1b"}
    task = {"model": case["model"], "plan": plan, "batch": microbatches, "steps": case["steps"] + 1}
    result = run_ranks("pipeline", task, num_ranks=ranks)
    instructions = _INSTRUCTIONS[ranks] * microbatches
    return [
        {"step": step, "step_s": step_s, "us_per_instruction": 1e6 * step_s / instructions}
        for step, step_s in enumerate(result["step_s"][1:], start=1)
    ]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return medians over steps and rounds, and each over those of the fewest microbatches."""
    groups = grouped(raw, "ranks", "microbatches")
    taken = {key: median(numbers(rows, "us_per_instruction")) for key, rows in groups.items()}
    fewest: dict[str, float] = {}
    for ranks, microbatches in groups:
        fewest.setdefault(ranks, taken[ranks, microbatches])  # the first row has the fewest
    return [
        {
            "ranks": ranks,
            "microbatches": microbatches,
            "us_per_instruction": taken[ranks, microbatches],
            "over_fewest": taken[ranks, microbatches] / fewest[ranks],
            "aim": "over_fewest <= 1",
        }
        for (ranks, microbatches), rows in groups.items()
    ]


def _draw(raw: Sequence[Row], path: Any) -> None:
    rows = grouped(summarise(raw), "ranks")
    measured = {
        f"{ranks} ranks": (numbers(group, "microbatches"), numbers(group, "us_per_instruction"))
        for (ranks,), group in rows.items()
    }
    title = "Microseconds of a rank per instruction, tiny model (measured)"
    lines(measured, path, title=title, labels=("microbatches", "us"))


HOST = Claim(
    aim="a rank takes no longer per instruction of a long step than of a short one",
    measurements=measurements,
    summarise=summarise,
    draw=_draw,
)
