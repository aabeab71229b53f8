"""The training runs that three claims share: jaxpipe, one jitted step, and PyTorch.

Every run is made once per round, and all runs of a round follow each other, so that what is
compared has seen the same machine. The rows of jaxpipe also have the ideal of each step: the mean
seconds of the stages' own forwards and backwards, arranged by the schedule with messages that take
no time, followed by the slowest rank's update.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from statistics import fmean
from typing import Any

from experiments.emulated_links import CannotMeasureError
from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import Draw
from experiments.runtime_benchmark.runs import check_cores, run_ranks, run_torch
from experiments.table import Row, grouped
from jaxpipe.schedule import ScheduleKind, Timetable, generate, timetable

NUM_RANKS = 2
REPLICAS = "replicas"
"""A replica of the whole model on each rank, in place of a pipeline; on one core, a rank alone."""

_COLUMNS = ("system", "how", "cores")

Span = Mapping[str, Any]


class System(StrEnum):
    """The system that trains."""

    JAXPIPE = "jaxpipe"
    """The runtime, one rank per core."""
    ONE_DEVICE = "one device"
    """One jitted step without the runtime; on two cores, an independent copy on each."""
    TORCH = "torch"
    """`torch.distributed.pipelining`, one rank per core, or plain PyTorch on one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run; `how` is a schedule, `REPLICAS` or, on one device, the form of the step.

    A claim is not summarised while one of its `is_required` runs is missing.
    """

    system: System
    how: str
    cores: int = NUM_RANKS
    is_required: bool = True

    @property
    def columns(self) -> Row:
        """The columns that identify the run in the raw table."""
        return {"system": self.system.value, "how": self.how, "cores": self.cores}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns as the text that rows are grouped by."""
        return tuple(str(self.columns[name]) for name in _COLUMNS)


def training_claim(
    *,
    aim: str,
    runs: Callable[[Mapping[str, Any]], Sequence[Run]],
    summarise: Callable[[Sequence[Row]], Sequence[Row]],
    draw: Draw,
) -> Claim:
    """Return a claim about training runs, which shares their raw table with the others."""
    return Claim(
        aim=aim,
        measurements=lambda bench: measurements(bench, runs(bench.cases)),
        summarise=summarise,
        draw=draw,
        table="training",
        select=lambda cases, rows: rows_of(runs(cases), rows),
    )


def measurements(bench: Bench, runs: Sequence[Run]) -> list[Measurement]:
    """Return a measurement per run and round, round by round.

    Runs of PyTorch are left out without its Python.

    Raises:
        CannotMeasureError: there are too few cores.
    """
    check_cores(needed=NUM_RANKS)
    return [
        Measurement(columns={**run.columns, "round": number}, measure=partial(_rows, bench, run))
        for number in range(bench.cases["work"]["rounds"])
        for run in runs
        if run.system is not System.TORCH or bench.torch_python is not None
    ]


def rows_of(runs: Sequence[Run], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of some runs, run by run.

    Raises:
        CannotMeasureError: a required run is missing.
    """
    groups = grouped(rows, *_COLUMNS)
    for run in runs:
        if run.is_required and run.key not in groups:
            raise CannotMeasureError(
                f"there is no run of {run.system}, {run.how}; for torch give `--torch-python`"
            )
    return [row for run in runs for row in groups.get(run.key, [])]


def _rows(bench: Bench, run: Run) -> list[Row]:
    """Train, and return a row per step after the first, which warms up."""
    result = _result(bench, run)
    work, model = bench.cases["work"], bench.cases["model"]
    batches = run.cores if run.system is System.ONE_DEVICE else 1
    rows = []
    for step, step_s in enumerate(result["step_s"][1:], start=1):
        ideal = _NO_IDEAL
        if run.system is System.JAXPIPE and run.how != REPLICAS:
            ideal = ideal_columns(
                [span for span in result["spans"] if span["step"] == step],
                step_s=step_s,
                schedule=run.how,
                num_microbatches=work["batch"] // work["microbatch"],
            )
        rows.append(
            {
                "step": step,
                "step_s": step_s,
                "rank_0_cpu_s": result["cpu_s"][step],
                "load": os.getloadavg()[0],
                "tokens_per_s": batches * work["batch"] * model["sequence"] / step_s,
                "loss": result["losses"][step],
                "compile_s": result.get("compile_s", ""),
                **ideal,
            }
        )
    return rows


def _result(bench: Bench, run: Run) -> Any:
    task = _task(bench.cases, run)
    if run.system is System.TORCH:
        assert bench.torch_python is not None, run
        return run_torch(bench.torch_python, task, num_ranks=run.cores)
    program = "pipeline" if run.system is System.JAXPIPE else "one_device"
    return run_ranks(program, task, num_ranks=run.cores)


def _task(cases: Mapping[str, Any], run: Run) -> dict[str, Any]:
    work = cases["work"]
    plan: dict[str, Any] = {"replicas": 1, "microbatch": work["microbatch"]}
    if run.how == REPLICAS:
        plan |= {"replicas": run.cores, "stages": 1, "schedule": "1f1b"}
    elif run.cores > 1 and run.system is not System.ONE_DEVICE:
        plan |= {"stages": run.cores, "schedule": run.how, "cut": work["cut"]}
    else:
        plan |= {"stages": 1, "schedule": "gpipe"}
    return {
        "model": cases["model"],
        "plan": plan,
        "batch": work["batch"],
        "steps": work["steps"] + 1,
        "form": run.how,
    }


_IDEAL = ("ratio", "ratio_pipeline", "ideal_s", "update_s", "bubble", "ideal_bubble")
_NO_IDEAL: Mapping[str, Any] = dict.fromkeys(_IDEAL, "")
"""The ideal's columns of a step without a pipeline."""


def ideal_columns(
    spans: Sequence[Span], *, step_s: float, schedule: str, num_microbatches: int
) -> dict[str, float]:
    """Compare the spans of a step with its ideal.

    `ratio` is the step over the ideal with its update; `ratio_pipeline` is the time from the first
    forward to the last backward over the ideal without the update.
    """
    num_ranks = 1 + max(span["rank"] for span in spans)
    ideal = _ideal(spans, ScheduleKind(schedule), num_ranks, num_microbatches)
    update_s = max(_seconds(spans, "update", rank) for rank in range(num_ranks))
    pipeline_s = _pipeline_s(spans)
    busy_s = sum(_seconds(spans, "compute", rank) for rank in range(num_ranks))
    return {
        "ratio": step_s / (ideal.makespan_s + update_s),
        "ratio_pipeline": pipeline_s / ideal.makespan_s,
        "ideal_s": ideal.makespan_s + update_s,
        "update_s": update_s,
        "bubble": 1 - busy_s / (num_ranks * pipeline_s),
        "ideal_bubble": ideal.bubble_fraction,
    }


def _ideal(
    spans: Sequence[Span], kind: ScheduleKind, num_stages: int, num_microbatches: int
) -> Timetable:
    programs = generate(kind, num_stages=num_stages, num_microbatches=num_microbatches)
    mean = {
        name: tuple(_mean_s(spans, name, stage) for stage in range(num_stages))
        for name in ("forward", "backward", "backward-input", "backward-weight")
    }
    if mean["backward"][0]:
        return timetable(programs, forward_s=mean["forward"], backward_s=mean["backward"])
    weight_s = mean["backward-weight"]
    return timetable(
        programs,
        forward_s=mean["forward"],
        backward_s=tuple(a + b for a, b in zip(mean["backward-input"], weight_s, strict=True)),
        backward_weight_s=weight_s,
    )


def _mean_s(spans: Sequence[Span], name: str, stage: int) -> float:
    """Return the mean seconds of an instruction of a stage; 0 if the schedule has none of it."""
    taken = [s["end_s"] - s["start_s"] for s in spans if (s["name"], s["stage"]) == (name, stage)]
    return fmean(taken) if taken else 0.0


def _seconds(spans: Sequence[Span], lane: str, rank: int) -> float:
    return sum(s["end_s"] - s["start_s"] for s in spans if (s["lane"], s["rank"]) == (lane, rank))


def _pipeline_s(spans: Sequence[Span]) -> float:
    """Return the seconds from the first to the last forward or backward."""
    compute = [span for span in spans if span["lane"] == "compute"]
    return max(s["end_s"] for s in compute) - min(s["start_s"] for s in compute)
