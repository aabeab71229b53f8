"""What a pipeline loses beyond the bubble of its schedule.

The ideal is made of the same step: the mean seconds of each stage's forwards and backwards, as its
rank took them, laid out by the schedule with messages in no time, then the slowest rank's update.
What is left above 1 are messages, dispatch, gradient bookkeeping, and the unevenness of the times.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.claims.pipelines import NUM_RANKS, run_pipeline, tokens_per_step
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import check_cores
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.schedule import ScheduleKind, Timetable, generate, timetable

Span = Mapping[str, Any]


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step of each schedule."""
    check_cores(needed=NUM_RANKS)
    rows: list[Row] = []
    for number in range(bench.cases["work"]["rounds"]):
        for schedule in bench.cases["efficiency"]["schedules"]:
            result = run_pipeline(bench, schedule=schedule)
            rows += step_rows(bench, result, schedule=schedule, number=number)
    return rows


def step_rows(bench: Bench, result: Any, *, schedule: str, number: int) -> list[Row]:
    """Return a row for each step of a run but the first."""
    work = bench.cases["work"]
    rows: list[Row] = []
    for step, step_s in enumerate(result["step_s"][1:], start=1):
        spans = [span for span in result["spans"] if span["step"] == step]
        ideal = _ideal(
            spans, schedule=schedule, num_microbatches=work["batch"] // work["microbatch"]
        )
        update_s = max(_seconds(spans, "update", rank) for rank in range(NUM_RANKS))
        rows.append(
            {
                "schedule": schedule,
                "round": number,
                "step": step,
                "step_s": step_s,
                "ideal_pipeline_s": ideal.makespan_s,
                "update_s": update_s,
                "ratio": step_s / (ideal.makespan_s + update_s),
                "ratio_pipeline": _pipeline_s(spans) / ideal.makespan_s,
                "ideal_bubble": ideal.bubble_fraction,
                "bubble": _bubble(spans),
                "tokens_per_s": tokens_per_step(bench) / step_s,
            }
        )
    return rows


def _ideal(spans: Sequence[Span], *, schedule: str, num_microbatches: int) -> Timetable:
    programs = generate(
        ScheduleKind(schedule), num_stages=NUM_RANKS, num_microbatches=num_microbatches
    )
    mean = {
        name: tuple(_mean(spans, name, stage) for stage in range(NUM_RANKS))
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


def _mean(spans: Sequence[Span], name: str, stage: int) -> float:
    """Return the mean seconds of a compute of a stage, and 0 if the schedule has none of it."""
    taken = [s["end_s"] - s["start_s"] for s in spans if (s["name"], s["stage"]) == (name, stage)]
    return fmean(taken) if taken else 0.0


def _seconds(spans: Sequence[Span], lane: str, rank: int) -> float:
    return sum(s["end_s"] - s["start_s"] for s in spans if (s["lane"], s["rank"]) == (lane, rank))


def _pipeline_s(spans: Sequence[Span]) -> float:
    """Return the seconds from the first to the last forward or backward."""
    compute = [span for span in spans if span["lane"] == "compute"]
    return max(s["end_s"] for s in compute) - min(s["start_s"] for s in compute)


def _bubble(spans: Sequence[Span]) -> float:
    busy_s = sum(_seconds(spans, "compute", rank) for rank in range(NUM_RANKS))
    return 1 - busy_s / (NUM_RANKS * _pipeline_s(spans))


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each schedule."""
    return [
        {
            "schedule": schedule,
            "steps": len(rows),
            "step_s": median(numbers(rows, "step_s")),
            "ratio": median(numbers(rows, "ratio")),
            "ratio_best": min(numbers(rows, "ratio")),
            "ratio_pipeline": median(numbers(rows, "ratio_pipeline")),
            "bubble": median(numbers(rows, "bubble")),
            "ideal_bubble": median(numbers(rows, "ideal_bubble")),
            "tokens_per_s": median(numbers(rows, "tokens_per_s")),
            "aim": 1.05,
        }
        for (schedule,), rows in grouped(raw, "schedule").items()
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the ratio of every step."""
    bars(
        {
            schedule: numbers(rows, "ratio")
            for (schedule,), rows in grouped(raw, "schedule").items()
        },
        path,
        title="Step over the ideal of its own computes (measured; a dot is a step)",
        unit="ratio",
        aim=1.05,
    )


EFFICIENCY = Claim(
    aim="a step takes at most 1.05 of its stages' own computes with the schedule's ideal bubble",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
