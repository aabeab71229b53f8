"""The result of a simulated step: seconds, PFLOPS, and a breakdown of the ranks' time."""

from dataclasses import dataclass

from jaxpipe.baselines.published.workload import Workload
from jaxpipe.simulate.step_seconds import step_interval_s
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


def step_time(trace: Trace, workload: Workload) -> StepTime:
    """Return the step time and breakdown of the trace of one step."""
    begin_s, end_s = step_interval_s(trace)
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
