"""Execute a simulated step for real: real ranks and messages, paced computes, emulated links.

::

    job ──► simulate ──► Trace, simulated
       └──► execute  ──► Trace, emulated: the runtime's interpreter, messages and all-reduces
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from jaxpipe.comm import (
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    Transport,
    barrier,
    broadcast_bytes,
    gather_bytes,
)
from jaxpipe.paced.outer_steps import PlannedOuter
from jaxpipe.paced.paced_rank import PacedRank, PacedTask, open_rank
from jaxpipe.paced.paced_transport import connect
from jaxpipe.paced.reduction import PlannedAllReduces
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.switch import Switch
from jaxpipe.paced.timing_error import NEVER_LATE, TimingError, added
from jaxpipe.paced.virtual_clock import TimeBase, VirtualClock
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.simulate.step_seconds import step_seconds
from jaxpipe.trace import Span, Trace, Truth

_AHEAD_S = 0.3
"""Real seconds until emulated time starts: all ranks must have received the origin by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One emulated step, or the steps of an outer loop.

    `step_s` is when the last rank is done, in emulated seconds; of a step between two barriers it
    is what rank 0's clock shows between them, of several their mean. `ends_s` is when the last rank
    has ended each, with the outer step that follows it, and `bubbles` are those of the ranks that
    step with rank 0. `real_s` is the time that this machine took, divided by the scale of time:
    longer, and much longer if the machine cannot keep up. `waits` is how late sleeps ended, in real
    seconds, and `network` how late messages reached their links, in emulated seconds.
    """

    step_s: float
    ends_s: tuple[float, ...]
    bubbles: tuple[float, ...]
    real_s: float
    waits: TimingError
    network: TimingError
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """The result of one rank, gathered on rank 0."""

    ends_s: tuple[float, ...] = ()
    bubbles: tuple[float, ...] = ()
    real_s: float = 0.0
    waits: TimingError = NEVER_LATE
    spans: tuple[Span, ...] = ()


def _ignore(_: int) -> None:
    """Do nothing after a step."""


def execute(
    job: StepModel,
    transport: Transport,
    *,
    scale: Scale | None = None,
    all_reduces: PlannedAllReduces | None = None,
    outer: PlannedOuter | None = None,
    timeout_s: float = 600.0,
    after_step: Callable[[int], None] = _ignore,
) -> Outcome | None:
    """Execute one step of a job, or its steps with an outer loop; return the outcome on rank 0.

    All ranks of the transport call this, with the same job, on one machine; the job may have fewer
    ranks, and then the others wait. With `all_reduces`, the runtime's own all-reduces sum the
    gradients; without, the messages of the job's collectives are sent, and nothing is added. Only
    the runtime gathers parameters. With `outer`, the job is the step of its whole plan, which
    places the ranks, and what is executed are the steps of its islands; the trace is that of the
    last one. Each rank calls `after_step` with the number of steps that it has done.

    Raises:
        DeadlineError: a wait lasted longer than `timeout_s`.
        TransportError: a message could not be moved.
    """
    assert job.num_ranks <= transport.num_ranks, (job.num_ranks, transport.num_ranks)
    assert all_reduces is not None or not job.gathers, "no messages stand for the job's gathers"
    task = PacedTask(
        job=job,
        scale=(scale or Scale()).fitted(job),
        all_reduces=all_reduces,
        timeout_s=timeout_s,
        outer=outer,
    )
    with _switch(task, transport) as (switch, path):
        report, clock, rank = _Report(), VirtualClock(), None
        if transport.rank < job.num_ranks:
            connection = connect(path, rank=transport.rank)
            rank = open_rank(task, transport, connection, clock=clock)
        # All ranks have connected by then: the switch accepts them without waiting.
        barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
        clock.start(_agree_on_origin(task, transport, switch))
        if rank is not None:
            try:
                report = _steps(rank, clock, after_step)
            except BaseException:
                rank.transport.close()
                raise
        gathered = gather_bytes(
            transport, msgspec.json.encode(report), root=0, tag=GATHER_TAG, timeout_s=timeout_s
        )
        if gathered is None or switch is None:
            return None
        reports = [msgspec.json.decode(report, type=_Report) for report in gathered]
        return _outcome(task, reports, switch.lateness)


def _agree_on_origin(task: PacedTask, transport: Transport, switch: Switch | None) -> TimeBase:
    """Return the time base that rank 0 chooses for all ranks."""
    origin_s = None
    if switch is not None:
        base = TimeBase(origin_s=time.perf_counter() + _AHEAD_S, stretch=task.scale.time)
        switch.start(base)
        origin_s = msgspec.json.encode(base)
    content = broadcast_bytes(
        transport, origin_s, root=0, tag=BROADCAST_TAG, timeout_s=task.timeout_s
    )
    return msgspec.json.decode(content, type=TimeBase)


def _steps(rank: PacedRank, clock: VirtualClock, after_step: Callable[[int], None]) -> _Report:
    # Until the origin, and at the end until real time has reached the virtual one.
    clock.sleep(0.0)
    ends_s, bubbles = list[float](), list[float]()
    for number in range(rank.task.num_steps):
        bubbles.append(rank.step(number=number))
        clock.sleep(0.0)
        ends_s.append(clock.now())
        after_step(number + 1)
    # `now` is the virtual time of the rank, `base.now` that of the real clock.
    real_s = clock.base.now()
    spans = rank.interpreter.recorder.kept(clock_offset_s=0.0)
    rank.close()
    return _Report(
        ends_s=tuple(ends_s),
        bubbles=tuple(bubbles),
        real_s=real_s,
        waits=clock.lateness,
        spans=spans,
    )


@contextmanager
def _switch(task: PacedTask, transport: Transport) -> Iterator[tuple[Switch | None, Path]]:
    """Yield the switch on rank 0, None elsewhere, and on all ranks the path of its socket."""
    # Not the folder of the run: a path of a Unix socket has about 100 bytes at most.
    with tempfile.TemporaryDirectory() as folder:
        switch, content = None, None
        if transport.rank == 0:
            path = Path(folder) / "switch"
            connects_all = task.outer is not None
            switch = Switch(task.job, path, gathers=task.gathers, connects_all=connects_all)
            content = str(path).encode()
        try:
            received = broadcast_bytes(
                transport, content, root=0, tag=BROADCAST_TAG, timeout_s=task.timeout_s
            )
            yield switch, Path(received.decode())
        finally:
            if switch is not None:
                switch.close()


def _outcome(task: PacedTask, reports: list[_Report], network: TimingError) -> Outcome:
    job = task.job
    names = tuple(
        f"rank {rank} on {job.cluster.devices[job.device(rank)].name}"
        for rank in range(job.num_ranks)
    )
    spans = tuple(
        # Spans count the bytes sent: results are in bytes of the job.
        replace(span, num_bytes=round(task.scale.meant(span.num_bytes)))
        for report in reports
        for span in report.spans
    )
    trace = Trace(
        truth=Truth.EMULATED,
        about=f"paced compute over links of cluster {job.cluster.name}",
        rank_names=names,
        spans=spans,
    )
    working = [report.ends_s for report in reports if report.ends_s]
    ends_s = tuple(max(ends) for ends in zip(*working, strict=True))
    return Outcome(
        step_s=step_seconds(trace) if job.is_between_barriers else ends_s[-1] / len(ends_s),
        ends_s=ends_s,
        bubbles=reports[0].bubbles,
        real_s=max(report.real_s for report in reports),
        waits=added(report.waits for report in reports),
        network=network,
        trace=trace,
    )
