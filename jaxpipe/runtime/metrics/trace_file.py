"""The trace of a run: gathered on rank 0, on its clock, and written in the format of Perfetto."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from jaxpipe.comm import GATHER_TAG, gather_bytes
from jaxpipe.errors import optional_output
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.trace import Span, Trace, plot, write_chrome


def gather_trace(worker: Worker, bubbles: Mapping[int, float]) -> Trace | None:
    """Return the kept spans of all ranks on rank 0, and None elsewhere.

    `bubbles` are those that were reported, by step; those of the kept steps belong to the trace.
    """
    spans = worker.interpreter.recorder.kept(clock_offset_s=worker.clock_offset_s)
    payloads = gather_bytes(
        worker.everyone,
        msgspec.json.encode(spans),
        root=0,
        tag=GATHER_TAG,
        timeout_s=worker.job.run.timeout_s,
    )
    if payloads is None:
        return None
    everything = tuple(
        span for payload in payloads for span in msgspec.json.decode(payload, type=list[Span])
    )
    steps = {span.step for span in everything}
    truth = worker.job.truth(os.environ)
    return Trace(
        truth=truth.truth,
        about=truth.about,
        rank_names=worker.whole.rank_names,
        spans=everything,
        bubbles=tuple((step, bubble) for step, bubble in bubbles.items() if step in steps),
    )


def write_trace(trace: Trace, *, path: Path, picture: Path | None) -> Path | None:
    """Write the trace and draw its last step; return the picture, or None if there is none.

    A run that was resumed after its last step has no spans, and keeps the trace that is there.
    """
    if not trace.spans:
        return picture if picture is not None and picture.exists() else None
    with optional_output("the trace", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_chrome(trace, path)
    if picture is None:
        return None
    with optional_output("the timeline", picture):  # it needs matplotlib, an extra
        plot(trace, picture, step=max(span.step for span in trace.spans))
        return picture
    return None
