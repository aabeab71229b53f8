"""What a simulated step amounts to: seconds, PFLOPS, and where the ranks' time went."""

from dataclasses import dataclass

from jaxpipe.simulate.published.workload import Workload
from jaxpipe.trace import Lane, Trace

_KINDS = {
    Lane.COMPUTE: "compute",
    Lane.RECEIVE: "waiting_for_messages",
    Lane.UPDATE: "update",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step takes, how fast that is, and its split.

    `breakdown` has the mean seconds of a rank and adds up to `seconds`: computing, waiting for
    messages with nothing else to do, in barriers, in the sums of gradients, updating, and idle (a
    rank that is done before the others). It is one of jobs with one chunk to a rank: sums that go
    on under the compute of another chunk would count twice.
    """

    seconds: float
    pflops: float
    breakdown: dict[str, float]


def step_time(trace: Trace, workload: Workload) -> StepTime:
    """Return what the trace of one step amounts to."""
    seconds = max(span.end_s for span in trace.spans)
    split: dict[str, float] = dict.fromkeys(
        ("compute", "waiting_for_messages", "barriers", "gradients", "update"), 0.0
    )
    for span in trace.spans:
        kind = _kind(span.lane, span.name)
        if kind is not None:
            split[kind] += (span.end_s - span.start_s) / len(trace.rank_names)
    split["idle"] = seconds - sum(split.values())
    return StepTime(seconds=seconds, pflops=workload.step_flop / seconds / 1e15, breakdown=split)


def _kind(lane: Lane, name: str) -> str | None:
    if lane is Lane.REDUCE:
        return "barriers" if name == "barrier" else "gradients"
    return _KINDS.get(lane)
