"""What a step of a pipeline would take with nothing but its own computes, in its schedule's order.

The mean seconds of each stage's forwards and backwards, as its rank took them in the same step, are
laid out by the schedule with messages in no time; then the slowest rank's update follows.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from jaxpipe.schedule import ScheduleKind, Timetable, generate, timetable

Span = Mapping[str, Any]

_COLUMNS = ("ratio", "ratio_pipeline", "ideal_s", "update_s", "bubble", "ideal_bubble")
NOTHING: Mapping[str, str] = dict.fromkeys(_COLUMNS, "")
"""The columns of a step that is no pipeline's."""


def ideal_columns(
    spans: Sequence[Span], *, step_s: float, schedule: str, num_microbatches: int
) -> dict[str, float]:
    """Return what the spans of one step amount to.

    `ratio` is the step over the ideal with its update, `ratio_pipeline` the time from the first
    forward to the last backward over the ideal without it.
    """
    num_ranks = 1 + max(span["rank"] for span in spans)
    ideal = _timetable(spans, ScheduleKind(schedule), num_ranks, num_microbatches)
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


def _timetable(
    spans: Sequence[Span], kind: ScheduleKind, num_stages: int, num_microbatches: int
) -> Timetable:
    programs = generate(kind, num_stages=num_stages, num_microbatches=num_microbatches)
    mean = {
        name: tuple(_mean(spans, name, stage) for stage in range(num_stages))
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
