"""One rank of a paced job: the interpreter of the runtime, around waits, sums and links."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import jax
import numpy as np

from jaxpipe.comm import (
    BARRIER_TAG,
    AllReducer,
    CompressedTransport,
    CountingTransport,
    Receiving,
    Transport,
    WireFormat,
    barrier,
)
from jaxpipe.paced.all_reduces import MessageAllReduces, RuntimeAllReduces
from jaxpipe.paced.paced_stage import paced_stage
from jaxpipe.paced.reduction import PlannedAllReduces, collectives_of
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.transport import PacedTransport
from jaxpipe.paced.virtual_clock import Pace
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.runtime.step.interpreter import Interpreter, StepBatch
from jaxpipe.runtime.step.mailbox import Timeouts
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.watchdog.of_job import no_watchdog
from jaxpipe.schedule import Bucket, Program
from jaxpipe.simulate.collective import Collective
from jaxpipe.simulate.engine.step_model import StepModel

_GRADIENT = np.dtype(np.float32)
_UNCUT_BYTES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks of a step know: the job, its scale, how long a wait may last.

    `sums` are how the runtime sums gradients; without, the messages of the job's collectives are
    sent, and nothing is added up.
    """

    job: StepModel
    scale: Scale
    sums: PlannedAllReduces | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedRank:
    """A rank that is ready: `interpreter` executes its `parts`, and all ranks meet after some."""

    task: Task
    interpreter: Interpreter
    transport: PacedTransport
    parts: tuple[Program, ...]

    def step(self, *, number: int) -> None:
        """Execute one step."""
        state = TrainState(
            stages={stage: StageState(params={}, moments=()) for stage in self.interpreter.compiled}
        )
        numbers = (each.microbatch or 0 for part in self.parts for each in part)
        microbatches = 1 + max(numbers, default=0)
        tokens = np.broadcast_to(np.zeros((1, 1, 2), np.int32), (microbatches, 1, 2))
        feed = StepBatch(step=number, first_microbatch=0, tokens=tokens)
        self.interpreter.train_parts(self.parts, state, feed, after=self._meet)

    def close(self) -> None:
        """End all threads."""
        self.interpreter.reducer.close(timeout_s=self.task.timeout_s)
        self.interpreter.messages.stop(timeout_s=self.task.timeout_s)
        self.transport.close()

    def _meet(self, phase: int) -> None:
        if self.task.job.phases[phase].meets and self.task.job.num_ranks > 1:
            barrier(self.transport, tag=BARRIER_TAG, timeout_s=self.task.timeout_s)


def open_rank(
    task: Task, transport: Transport, connection: socket.socket, *, pace: Pace
) -> PacedRank:
    """Return this rank of a job, which is connected to the switch."""
    job, rank = task.job, transport.rank
    paced = PacedTransport(
        transport, connection, num_ranks=job.num_ranks, pace=pace, scale=task.scale
    )
    counted = CountingTransport(paced)
    collectives = collectives_of(job, rank)
    plan = _place(job, rank=rank) if task.sums is None else task.sums.plan
    reducer: AllReducer = (
        RuntimeAllReduces(counted, paced, pace)
        if task.sums is not None
        else MessageAllReduces(paced, pace, collectives=collectives, scale=task.scale)
    )
    message = np.zeros(task.scale.num_bytes(job.activation_bytes), np.uint8)
    number = rank % job.num_pipeline_ranks
    interpreter = Interpreter(
        plan=plan,
        compiled={
            stage: paced_stage(
                job,
                rank=rank,
                stage=stage,
                pace=pace,
                message=message,
                buckets=_buckets(task, stage=stage),
            )
            for stage in plan.stages(rank)
        },
        transport=counted,
        messages=CompressedTransport(counted, {}),
        reducer=reducer,
        wire=_wire(task),
        recorder=SpanRecorder(rank=rank, clock=pace.now, keep=lambda _: True),
        patience=Timeouts(timeout_s=task.timeout_s),
        watch=no_watchdog(rank),
        receive=_receive,
    )
    return PacedRank(
        task=task,
        interpreter=interpreter,
        transport=paced,
        parts=tuple(_part(phase.schedule[number], task, collectives) for phase in job.phases),
    )


def _receive(
    transport: Transport, like: jax.ShapeDtypeStruct, *, source: int, tag: int
) -> Receiving:
    """Start to receive an array that stays where it is: no device computes with it."""
    return transport.receive(like, source=source, tag=tag)


def _part(program: Program, task: Task, collectives: Mapping[int, Collective]) -> Program:
    """Return what a rank executes of a phase: no sum for which the job has no messages."""
    if task.sums is not None:
        return program
    return tuple(
        each
        for each in program
        if each.bucket in (None, Bucket.SCALARS) or reduction_tag(each) in collectives
    )


def _buckets(task: Task, *, stage: int) -> dict[Bucket, np.ndarray]:
    """Return the gradients of a stage, in as many values as messages are smaller."""
    sums = task.sums
    if sums is None:
        return {bucket: np.zeros(1, _GRADIENT) for bucket in (Bucket.STAGE, Bucket.TIED)}
    held = [Bucket.STAGE]
    if sums.plan.tied and stage in (0, sums.plan.num_stages - 1):
        held.append(Bucket.TIED)
    return {
        bucket: np.zeros(
            max(1, task.scale.num_bytes(sums.num_bytes(bucket, stage=stage)) // _GRADIENT.itemsize),
            _GRADIENT,
        )
        for bucket in held
    }


def _wire(task: Task) -> WireFormat:
    if task.sums is None or task.sums.chunk_bytes == inf:
        return WireFormat(chunk_bytes=_UNCUT_BYTES)
    chunk_bytes = task.scale.num_bytes(task.sums.chunk_bytes)
    return WireFormat(chunk_bytes=max(_GRADIENT.itemsize, chunk_bytes))


def _place(job: StepModel, *, rank: int) -> Plan:
    """Return where the ranks of a job are; nothing is summed along its trees."""
    num_stages = job.num_stages
    return Plan(
        placement=job.placement,
        cut=(1,) * num_stages,
        schedule=tuple(() for _ in range(job.num_pipeline_ranks)),
        warmup=None,
        num_microbatches=1,
        tied=False,
        sync=(rank,) * num_stages,
        sync_shared=rank,
        sync_all=rank,
        num_chunks=job.num_chunks,
    )
