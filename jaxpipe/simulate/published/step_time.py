"""The result of a simulated step: seconds, PFLOPS, and a breakdown of the ranks' time.

A step with barriers at its beginning and end takes what rank 0's clock shows between them, as
DT-FM's runs were timed; any other step ends with its slowest rank.
"""

from dataclasses import dataclass

from jaxpipe.simulate.published.workload import Workload
from jaxpipe.trace import Lane, Trace

# Without sends, which run while their rank computes.
_KINDS = {
    Lane.COMPUTE: "compute",
    Lane.RECEIVE: "waiting_for_messages",
    Lane.UPDATE: "update",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The seconds of a step, its PFLOPS, and their breakdown.

    `breakdown` has the mean seconds of a rank and adds up to `seconds`: computing, waiting for
    messages, in barriers, in all-reduces of gradients, updating, and idle (after a rank's own end),
    all within the interval that `seconds` measures.
    It is for steps with one chunk per rank: all-reduces that overlap with the compute of another
    chunk would count twice.
    """

    seconds: float
    pflops: float
    breakdown: dict[str, float]


def barrier_ends_s(trace: Trace) -> list[float]:
    """Return when rank 0 left each barrier of a step."""
    return [
        span.end_s
        for span in trace.spans
        if span.rank == 0 and _kind(span.lane, span.name) == "barriers"
    ]


def step_seconds(trace: Trace) -> float:
    """Return the seconds of a step."""
    begin_s, end_s = _interval(trace)
    return end_s - begin_s


def _interval(trace: Trace) -> tuple[float, float]:
    ends_s = barrier_ends_s(trace)
    if len(ends_s) < 2:
        return 0.0, max(span.end_s for span in trace.spans)
    return ends_s[0], ends_s[-1]


def step_time(trace: Trace, workload: Workload) -> StepTime:
    """Return the step time and breakdown of the trace of one step."""
    begin_s, end_s = _interval(trace)
    seconds = end_s - begin_s
    split: dict[str, float] = dict.fromkeys(
        ("compute", "waiting_for_messages", "barriers", "gradients", "update"), 0.0
    )
    for span in trace.spans:
        kind = _kind(span.lane, span.name)
        if kind is not None:
            within_s = min(span.end_s, end_s) - max(span.start_s, begin_s)
            split[kind] += max(0.0, within_s) / len(trace.rank_names)
    # Whatever is left: ranks that have ended before the slowest.
    split["idle"] = seconds - sum(split.values())
    return StepTime(seconds=seconds, pflops=workload.step_flop / seconds / 1e15, breakdown=split)


def _kind(lane: Lane, name: str) -> str | None:
    if lane is Lane.REDUCE:
        return "barriers" if name == "barrier" else "gradients"
    return _KINDS.get(lane)
