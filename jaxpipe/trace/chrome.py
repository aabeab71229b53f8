"""Chrome JSON: traces for Perfetto and chrome://tracing, which can be read back without loss.

::

    process   a rank, by its name; labelled with the truth of the trace
    thread    a lane of the rank; a second one where spans of the lane overlap
    slice     a span, by its name and microbatch; all its fields are arguments
    arrow     from a send to the receive that it ends

The format counts microseconds; the arguments keep the exact seconds, so that reading returns
exactly the trace that was written.

Source: "Trace Event Format", Google, 2016: complete, metadata and flow events.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jaxpipe.errors import UserError
from jaxpipe.foreign_file import read_json, reason_of
from jaxpipe.trace.span import Lane, Span, Trace, messages, rows

Event = dict[str, Any]
"""One object of the format's `traceEvents`."""

_PRODUCER = "jaxpipe"
_MOST_BYTES = 2**31
_LANES = tuple(Lane)
_US_PER_S = 1e6
_FIRST_STEP = 1
"""The number of a run's first step. Files without this field count from 0."""


class _Thread(NamedTuple):
    """The thread of a span within its rank; the same on every rank."""

    number: int
    lane: Lane
    row: int


def to_chrome(trace: Trace) -> dict[str, Any]:
    """Return the trace as an object of the Chrome JSON format.

    >>> from jaxpipe.trace.span import Truth
    >>> span = Span(
    ...     rank=0, lane=Lane.COMPUTE, name="forward", start_s=0.5, end_s=2.0, step=7, stage=0,
    ...     microbatch=3,
    ... )
    >>> trace = Trace(truth=Truth.SIMULATED, rank_names=("stage 0 in Oslo",), spans=(span,))
    >>> event = to_chrome(trace)["traceEvents"][-1]
    >>> event["name"], event["pid"], event["ts"], event["dur"]
    ('forward 3', 0, 500000.0, 1500000.0)
    """
    threads = _threads(trace)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "producer": _PRODUCER,
            "truth": trace.truth.value,
            "about": trace.about,
            "first_step": _FIRST_STEP,
            "bubbles": [list(bubble) for bubble in trace.bubbles],
            "rank_names": list(trace.rank_names),
        },
        "traceEvents": [
            *_processes(trace),
            *_thread_names(threads),
            *(_slice(span, thread=threads[span]) for span in trace.spans),
            *_arrows(trace, threads),
        ],
    }


def write_chrome(trace: Trace, path: Path) -> None:
    """Write the trace to `path` as Chrome JSON."""
    path.write_bytes(msgspec.json.encode(to_chrome(trace)))


def read_chrome(path: Path) -> Trace:
    """Return the trace that `write_chrome` wrote to `path`, its spans in the same order.

    Raises:
        UserError: `path` cannot be read, or was not written by `write_chrome`.
    """
    try:
        document = read_json(path, dict[str, Any], most_bytes=_MOST_BYTES)
        other = document["otherData"]
        if other["producer"] != _PRODUCER:
            raise KeyError("producer")
        # Metadata and arrows follow from the spans.
        spans = [event["args"] for event in document["traceEvents"] if event["ph"] == "X"]
        fields = {
            "truth": other["truth"],
            "rank_names": other["rank_names"],
            "spans": spans,
            "about": other.get("about", ""),
            "bubbles": other.get("bubbles", []),
        }
        trace = msgspec.convert(fields, Trace)
        if "first_step" in other:
            return trace
        return replace(trace, spans=tuple(replace(s, step=s.step + 1) for s in trace.spans))
    except OSError as error:
        raise UserError(
            f"`path` must be a trace that jaxpipe wrote: {path} cannot be read ({reason_of(error)})"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"`path` must be a trace that jaxpipe wrote: {path} is not Chrome JSON with its fields "
            f"({error})"
        ) from error


def _threads(trace: Trace) -> dict[Span, _Thread]:
    lanes: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in trace.spans:
        lanes[span.rank, span.lane].append(span)
    positions = {
        span: (_LANES.index(lane), row)
        for (_, lane), spans in lanes.items()
        for span, row in zip(spans, rows(spans), strict=True)
    }
    # Over all ranks, so that a lane has the same number on each.
    numbers = {position: number for number, position in enumerate(sorted(set(positions.values())))}
    return {
        span: _Thread(number=numbers[lane, row], lane=_LANES[lane], row=row)
        for span, (lane, row) in positions.items()
    }


def _processes(trace: Trace) -> Iterator[Event]:
    for rank, name in enumerate(trace.rank_names):
        yield _metadata("process_name", rank, {"name": f"rank {rank}: {name}"})
        yield _metadata("process_labels", rank, {"labels": trace.label})
        yield _metadata("process_sort_index", rank, {"sort_index": rank})


def _thread_names(threads: dict[Span, _Thread]) -> Iterator[Event]:
    for rank, thread in sorted({(span.rank, thread) for span, thread in threads.items()}):
        name = thread.lane.value if thread.row == 0 else f"{thread.lane} {thread.row + 1}"
        yield {**_metadata("thread_name", rank, {"name": name}), "tid": thread.number}
        yield {
            **_metadata("thread_sort_index", rank, {"sort_index": thread.number}),
            "tid": thread.number,
        }


def _metadata(name: str, rank: int, args: dict[str, str | int]) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "args": args}


def _slice(span: Span, *, thread: _Thread) -> Event:
    return {
        "ph": "X",
        "name": span.name if span.microbatch is None else f"{span.name} {span.microbatch}",
        "cat": span.lane.value,
        "pid": span.rank,
        "tid": thread.number,
        "ts": span.start_s * _US_PER_S,
        "dur": (span.end_s - span.start_s) * _US_PER_S,
        "args": {name: value for name, value in asdict(span).items() if value is not None},
    }


def _arrows(trace: Trace, threads: dict[Span, _Thread]) -> Iterator[Event]:
    for number, (sent, received) in enumerate(messages(trace)):
        common = {"name": "message", "cat": "message", "id": number}
        yield {
            **common,
            "ph": "s",
            "pid": sent.rank,
            "tid": threads[sent].number,
            "ts": sent.start_s * _US_PER_S,
        }
        # An arrow ends in the slice that is open at its time, so it must end before the receive
        # does; but as late as possible, since a receive that waits begins before its send.
        inside_s = min(1e-6, (received.end_s - received.start_s) / 2)
        yield {
            **common,
            "ph": "f",
            "bp": "e",
            "pid": received.rank,
            "tid": threads[received].number,
            "ts": (received.end_s - inside_s) * _US_PER_S,
        }
