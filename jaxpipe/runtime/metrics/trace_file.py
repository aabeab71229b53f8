"""The trace of a run: gathered on rank 0, on its clock, and written in the format of Perfetto."""

import logging
from pathlib import Path

import msgspec

from jaxpipe.comm import GATHER_TAG, gather_bytes
from jaxpipe.errors import UserError
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.trace import Span, Trace, Truth, plot, write_chrome

logger = logging.getLogger(__name__)


def gather_trace(worker: Worker) -> Trace | None:
    """Return the kept spans of all ranks on rank 0, and None elsewhere."""
    spans = worker.interpreter.recorder.kept(clock_offset_s=worker.clock_offset_s)
    payloads = gather_bytes(
        worker.transport,
        msgspec.json.encode(spans),
        root=0,
        tag=GATHER_TAG,
        timeout_s=worker.job.run.timeout_s,
    )
    if payloads is None:
        return None
    everything = (
        span for payload in payloads for span in msgspec.json.decode(payload, type=list[Span])
    )
    return Trace(truth=Truth.MEASURED, rank_names=worker.job.rank_names, spans=tuple(everything))


def write_trace(trace: Trace, *, path: Path, picture: Path) -> Path | None:
    """Write the trace and draw its last step; return the picture, or None if there is none.

    A run that was resumed after its last step has no spans, and keeps the trace that is there.
    """
    if not trace.spans:
        return picture if picture.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_chrome(trace, path)
    # The picture needs matplotlib, an extra; a run must not fail for lack of it.
    try:
        plot(trace, picture, step=max(span.step for span in trace.spans))
    except UserError as error:
        logger.warning("the timeline was not drawn: %s", error)
        return None
    return picture
