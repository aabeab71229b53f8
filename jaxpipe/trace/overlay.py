"""Overlay: one step of several traces, for example plan and run, aligned in one Perfetto file.

::

    simulated rank 0   │ 0 │ 1 │       │  0  │  1  │
    measured rank 0    │ 0  │ 1  │          │   0  │   1  │
    simulated rank 1       │ 0 │ 1 │ ...
    measured rank 1         │  0  │  1  │ ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.errors import UserError
from jaxpipe.trace.chrome import to_chrome
from jaxpipe.trace.span import Span, Trace


def one_step(trace: Trace, *, step: int, called: int | None = None) -> Trace:
    """Return one step of the trace, shifted to begin at 0, under the number `called` if given.

    Raises:
        UserError: the trace has no such step.

    >>> from jaxpipe.trace.span import Lane, Span, Truth
    >>> span = Span(
    ...     rank=0, lane=Lane.UPDATE, name="update", start_s=5.0, end_s=7.0, step=3, stage=0
    ... )
    >>> trace = Trace(truth=Truth.MEASURED, rank_names=("a",), spans=(span,))
    >>> [(each.start_s, each.end_s) for each in one_step(trace, step=3).spans]
    [(0.0, 2.0)]
    """
    spans = [span for span in trace.spans if span.step == step]
    if not spans:
        steps = sorted({span.step for span in trace.spans})
        raise UserError(f"`step` must be one of the trace's, not {step}; choose from {steps}")
    start_s = min(span.start_s for span in spans)
    number = step if called is None else called
    return replace(
        trace,
        spans=tuple(
            replace(s, start_s=s.start_s - start_s, end_s=s.end_s - start_s, step=number)
            for s in spans
        ),
        bubbles=tuple((number, bubble) for of, bubble in trace.bubbles if of == step),
    )


def of_ranks(trace: Trace, ranks: range) -> Trace:
    """Return the trace of some ranks alone, which are numbered from 0."""
    return _moved(trace, ranks, by=-ranks.start)


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """Return traces of different ranks as one; the ranks of each follow those of the one before."""
    names: list[str] = []
    spans: list[Span] = []
    for trace in traces:
        spans += _moved(trace, range(len(trace.rank_names)), by=len(names)).spans
        names += trace.rank_names
    return replace(traces[0], rank_names=tuple(names), spans=tuple(spans), bubbles=())


def _moved(trace: Trace, ranks: range, *, by: int) -> Trace:
    spans = tuple(
        replace(s, rank=s.rank + by, peer=None if s.peer is None else s.peer + by)
        for s in trace.spans
        if s.rank in ranks
    )
    return replace(trace, rank_names=trace.rank_names[ranks.start : ranks.stop], spans=spans)


def write_overlay(traces: Sequence[Trace], path: Path) -> None:
    """Write traces of the same ranks as one Perfetto file, the same ranks next to each other."""
    events = [
        event for number, trace in enumerate(traces) for event in _events(trace, number, traces)
    ]
    path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}))


def _events(trace: Trace, number: int, traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """Yield the events of one of the traces, with process and arrow numbers of its own."""
    for event in to_chrome(trace)["traceEvents"]:
        # Interleaved: Perfetto shows processes in the order of their numbers.
        moved = {**event, "pid": event["pid"] * len(traces) + number}
        if "id" in event:
            moved["id"] = event["id"] * len(traces) + number
        if event["name"] == "process_name":
            moved["args"] = {"name": f"{trace.truth} {event['args']['name']}"}
        if event["name"] == "process_sort_index":
            moved["args"] = {"sort_index": moved["pid"]}
        yield moved
