"""Against `torch.distributed.pipelining`, on one core and on two: tokens/s, and how they scale."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.runtime_benchmark.claim import Bench, CannotMeasureError, Claim, Row
from experiments.runtime_benchmark.claims.pipelines import (
    NUM_RANKS,
    run_one_device,
    run_pipeline,
    task,
    tokens_per_step,
)
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import check_cores, run_torch
from experiments.runtime_benchmark.tables import grouped, numbers


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step; ours and theirs alternate."""
    check_cores(needed=NUM_RANKS)
    if bench.torch_python is None:
        raise CannotMeasureError("`--torch-python` names no Python that has PyTorch")
    rows: list[Row] = []
    for number in range(bench.cases["work"]["rounds"]):
        for cores, schedule, system, result in _round(bench, bench.torch_python):
            rows += [
                {
                    "system": system,
                    "schedule": schedule,
                    "cores": cores,
                    "round": number,
                    "step": step,
                    "step_s": step_s,
                    "loss": result["losses"][step],
                    "tokens_per_s": tokens_per_step(bench) / step_s,
                }
                for step, step_s in enumerate(result["step_s"][1:], start=1)
            ]
    return rows


def _round(bench: Bench, python: Path) -> list[tuple[int, str, str, Any]]:
    alone = task(bench, {"stages": 1, "schedule": "gpipe"})
    results: list[tuple[int, str, str, Any]] = [
        (1, "one device", "jaxpipe", run_one_device(bench, form="parts")),
        (1, "one device", "torch", run_torch(python, alone, num_ranks=1)),
    ]
    for schedule in bench.cases["torch"]["schedules"]:
        plan = {"stages": NUM_RANKS, "cut": bench.cases["work"]["cut"], "schedule": schedule}
        theirs = run_torch(python, task(bench, plan), num_ranks=NUM_RANKS)
        ours = run_pipeline(bench, schedule=schedule)
        results += [(NUM_RANKS, schedule, "jaxpipe", ours), (NUM_RANKS, schedule, "torch", theirs)]
    return results


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return ours beside theirs: a row for one core, and one for each schedule on two."""
    speed = {key: median(numbers(rows, "tokens_per_s")) for key, rows in _groups(raw).items()}
    schedules = dict.fromkeys(schedule for _, schedule in speed)
    return [
        {
            "schedule": schedule,
            "jaxpipe_tokens_per_s": speed["jaxpipe", schedule],
            "torch_tokens_per_s": speed["torch", schedule],
            "ratio": speed["jaxpipe", schedule] / speed["torch", schedule],
            "jaxpipe_scaling": speed["jaxpipe", schedule] / speed["jaxpipe", "one device"],
            "torch_scaling": speed["torch", schedule] / speed["torch", "one device"],
        }
        for schedule in schedules
    ]


def _groups(raw: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    return grouped(raw, "system", "schedule")


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the speed of every step."""
    bars(
        {
            f"{system}\n{schedule}": numbers(rows, "tokens_per_s")
            for (system, schedule), rows in sorted(
                _groups(raw).items(), key=lambda item: item[0][1]
            )
        },
        path,
        title="One core, and two with a pipeline (measured; a dot is a step)",
        unit="tokens/s",
    )


TORCH = Claim(
    aim="more tokens/s than torch.distributed.pipelining, and better scaling to two cores",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
