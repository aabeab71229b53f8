"""Seconds of one step, from its trace.

A step with barriers at its beginning and end takes what rank 0's clock shows between them, as
DT-FM's runs were timed; any other step ends with its slowest rank.
"""

from jaxpipe.trace import Lane, Trace


def step_seconds(trace: Trace) -> float:
    """Return the seconds of a step."""
    begin_s, end_s = step_interval_s(trace)
    return end_s - begin_s


def step_interval_s(trace: Trace) -> tuple[float, float]:
    """Return when a step begins and ends."""
    ends_s = barrier_ends_s(trace)
    if len(ends_s) < 2:
        return 0.0, max(span.end_s for span in trace.spans)
    return ends_s[0], ends_s[-1]


def barrier_ends_s(trace: Trace) -> list[float]:
    """Return when rank 0 left each barrier of a step."""
    return [
        span.end_s
        for span in trace.spans
        if span.rank == 0 and span.lane is Lane.REDUCE and span.name == "barrier"
    ]
