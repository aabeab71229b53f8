"""Which send each receive ended: the two spans of every message."""

from collections import defaultdict

from jaxpipe.trace.span import Lane, Span, Trace


def messages(trace: Trace) -> tuple[tuple[Span, Span], ...]:
    """Return the send and the receive of each message whose both ends are in the trace.

    The ends of a message agree on step, source rank, destination rank and microbatch. Where several
    messages do, as a step's training and its evaluation may, the first sent is the first received.
    """
    sends: dict[tuple[int, int, int | None, int | None], list[Span]] = defaultdict(list)
    receives: dict[tuple[int, int, int | None, int | None], list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda each: each.start_s):
        if span.lane is Lane.SEND and span.peer is not None:
            sends[span.step, span.rank, span.peer, span.microbatch].append(span)
        elif span.lane is Lane.RECEIVE and span.peer is not None:
            receives[span.step, span.peer, span.rank, span.microbatch].append(span)
    return tuple(
        pair for key in sends for pair in zip(sends[key], receives.get(key, ()), strict=False)
    )
