"""One rank of a paced job: the runtime's interpreter over sleeps and emulated links."""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

import jax
import numpy as np

from jaxpipe.collective import Collective
from jaxpipe.comm import (
    BARRIER_TAG,
    AllReducer,
    CompressedTransport,
    CountingTransport,
    Receiving,
    SubsetTransport,
    Transport,
    WireFormat,
    barrier,
)
from jaxpipe.paced.all_reduces import MessageAllReduces, RuntimeAllReduces
from jaxpipe.paced.boundary_messages import BoundaryMessages
from jaxpipe.paced.outer_steps import OuterSteps, PlannedOuter, outer_steps
from jaxpipe.paced.paced_stage import PacedShards, PacedStage, paced_stage
from jaxpipe.paced.paced_transport import PacedTransport
from jaxpipe.paced.reduction import PlannedAllReduces, collectives_of, gathered_tags
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import VirtualClock
from jaxpipe.plan import Pipeline, Plan
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.runtime.step.interpreter import Interpreter
from jaxpipe.runtime.step.mailbox import Timeouts
from jaxpipe.runtime.step.parameter_gather import optimizer_shards_of
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.step_batch import StepBatch
from jaxpipe.runtime.watchdog.of_job import no_watchdog
from jaxpipe.schedule import Bucket, Instruction, Op, Program
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.trace import Lane

_GRADIENT = np.dtype(np.float32)
_ONE_CHUNK_BYTES = 2**40  # more than any message: no chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedTask:
    """The arguments of a run of one step, or with an outer loop of several, the same on all ranks.

    With `all_reduces` the runtime's own all-reduces sum gradients of that size, and its all-gathers
    follow updates; without, only the messages of the job's collectives are sent, and nothing is
    added: such a job has no gathers. With `outer` each rank executes the steps of its island.
    """

    job: StepModel
    scale: Scale
    all_reduces: PlannedAllReduces | None
    timeout_s: float
    outer: PlannedOuter | None = None

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return 1 if self.outer is None else self.outer.num_steps

    @property
    def gathers(self) -> frozenset[int]:
        """The tags of the all-reduces inside a step."""
        jobs = (self.job,) if self.outer is None else [island.job for island in self.outer.islands]
        return frozenset().union(*map(gathered_tags, jobs))

    def of_rank(self, rank: int) -> "PacedTask":
        """Return the task of a rank: with an outer loop, its island in place of all ranks."""
        if self.outer is None:
            return self
        job = self.outer.of_rank(rank)
        return replace(self, job=job.job, all_reduces=job.all_reduces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedRank:
    """A rank that is set up: `interpreter` executes `parts`, with a barrier after some of them."""

    task: PacedTask
    interpreter: Interpreter
    transport: PacedTransport
    messages: BoundaryMessages
    parts: tuple[Program, ...]
    outer: OuterSteps | None

    def step(self, *, number: int) -> float:
        """Execute a step, and what of an outer step is due after it; return its bubble."""
        state = TrainState(
            stages={stage: StageState(params={}, moments=()) for stage in self.interpreter.calls}
        )
        numbers = (instruction.microbatch or 0 for part in self.parts for instruction in part)
        microbatches = 1 + max(numbers, default=0)
        # No data is read: zeros that take no memory stand for the tokens of all microbatches.
        tokens = np.broadcast_to(np.zeros((1, 1, 2), np.int32), (microbatches, 1, 2))
        feed = StepBatch(step=number, first_microbatch=0, samples=tokens)
        _, totals = self.interpreter.train_parts(self.parts, state, feed, after=self._barrier)
        if self.outer is not None:
            self.outer.after_step(number + 1)
        # Programs of published systems sum no scalars, and have no bubble to report.
        return totals.bubble if totals.pipeline_s else 0.0

    def close(self) -> None:
        """End all threads."""
        if self.outer is not None:
            self.outer.close(timeout_s=self.task.timeout_s)
        self.interpreter.reducer.close(timeout_s=self.task.timeout_s)
        self.interpreter.messages.stop(timeout_s=self.task.timeout_s)
        self.messages.stop(timeout_s=self.task.timeout_s)
        self.transport.close()

    def _barrier(self, phase: int) -> None:
        job = self.task.job
        if not job.phases[phase].meets or job.num_ranks == 1:
            return
        stage = job.number(self.transport.rank)
        with self.interpreter.recorder.span(
            Lane.REDUCE, Instruction(op=Op.REDUCE, stage=stage), name="barrier"
        ):
            barrier(
                self.transport, tag=BARRIER_TAG, timeout_s=self.task.timeout_s, kind=job.barrier
            )


def open_rank(
    whole_task: PacedTask, transport: Transport, connection: socket.socket, *, clock: VirtualClock
) -> PacedRank:
    """Return this rank of a job; `connection` is its connection to the switch."""
    task = whole_task.of_rank(transport.rank)
    job, outer = task.job, task.outer
    paced = PacedTransport(
        transport,
        connection,
        num_ranks=whole_task.job.num_ranks,
        clock=clock,
        scale=task.scale,
        blocking_s=task.timeout_s if job.blocking else None,
    )
    inside: Transport = paced
    if outer is not None:
        inside = SubsetTransport(paced, members=outer.of_rank(paced.rank).island.ranks)
    counted = CountingTransport(inside)
    rank = counted.rank
    collectives = collectives_of(job, rank)
    # Without the runtime's all-reduces, a plan is asked only where ranks are.
    plan = _placement_only(job, rank=rank) if task.all_reduces is None else task.all_reduces.plan
    reducer: AllReducer = (
        RuntimeAllReduces(counted, paced, clock)
        if task.all_reduces is not None
        else MessageAllReduces(paced, clock, collectives=collectives, scale=task.scale)
    )
    number, replica = job.number(rank), job.replicas[rank]
    messages = BoundaryMessages(counted, job, task.scale, clock=clock)
    interpreter = Interpreter(
        plan=plan,
        calls=_calls(task, plan.stages(rank), rank=rank, clock=clock),
        transport=counted,
        messages=CompressedTransport(messages, {}),
        reducer=reducer,
        wire=_wire(task),
        recorder=SpanRecorder(
            rank=paced.rank,
            clock=clock.now,
            keep=lambda step: step == task.num_steps - 1,
            first_rank=paced.rank - rank,
        ),
        timeouts=Timeouts(timeout_s=task.timeout_s),
        watch=no_watchdog(rank),
        receive=_receive,
        clip_norm=inf,  # the simulation clips nothing either
    )
    return PacedRank(
        task=task,
        interpreter=interpreter,
        transport=paced,
        messages=messages,
        parts=tuple(_part(phase.of(replica)[number], task, collectives) for phase in job.phases),
        outer=None if outer is None else _outer_steps(task, outer, counted, paced, clock),
    )


def _calls(
    task: PacedTask, stages: Iterable[int], *, rank: int, clock: VirtualClock
) -> dict[int, PacedStage]:
    """Return the calls of the stages of a rank, by stage."""
    # As large as any: what is sent and received has the size of its boundary.
    message = np.zeros(task.scale.num_bytes(task.job.largest_message_bytes), np.uint8)
    return {
        stage: paced_stage(
            task.job,
            rank=rank,
            stage=stage,
            clock=clock,
            message=message,
            buckets=_buckets(task, rank=rank, stage=stage),
            sharded=_shards(task, rank=rank, stage=stage),
        )
        for stage in stages
    }


def _outer_steps(
    task: PacedTask,
    outer: PlannedOuter,
    inside: Transport,
    paced: PacedTransport,
    clock: VirtualClock,
) -> OuterSteps:
    return outer_steps(
        outer,
        inside=inside,
        everyone=paced,
        # A thread of their own: the sums of a step do not wait for those between islands.
        reducer=RuntimeAllReduces(paced, paced, clock),
        wire=_wire(task),
        sizes={
            bucket: max(1, task.scale.num_bytes(num_bytes) // _GRADIENT.itemsize)
            for bucket, num_bytes in outer.bucket_bytes.items()
        },
        timeout_s=task.timeout_s,
    )


def _receive(
    transport: Transport, like: jax.ShapeDtypeStruct, *, source: int, tag: int
) -> Receiving:
    """Start to receive an array into host memory: no device computes with it."""
    return transport.receive(like, source=source, tag=tag)


def _part(program: Program, task: PacedTask, collectives: Mapping[int, Collective]) -> Program:
    """Return the program of a phase without the all-reduces for which the job has no messages."""
    if task.all_reduces is not None:
        return program
    return tuple(
        instruction
        for instruction in program
        if instruction.bucket in (None, Bucket.SCALARS) or reduction_tag(instruction) in collectives
    )


def _buckets(task: PacedTask, *, rank: int, stage: int) -> Buckets:
    """Return the gradients of a stage, with as many values as the scale leaves of them."""
    planned = task.all_reduces
    if planned is None:
        number = len(task.job.collectives.get(Bucket.STAGE, ())) or 1
        none = np.zeros(1, _GRADIENT)
        return {Bucket.STAGE: (none,) * number, Bucket.TIED: (none,)}
    plan = planned.plan
    sizes = {Bucket.STAGE: planned.of_stage(replica=plan.replica(rank), stage=stage)}
    if plan.tied and stage in (0, plan.pipeline(rank).num_stages - 1):
        sizes[Bucket.TIED] = (planned.shared_bytes,)
    return {
        bucket: tuple(_zeros(task.scale.num_bytes(size)) for size in of_bucket)
        for bucket, of_bucket in sizes.items()
    }


def _shards(task: PacedTask, *, rank: int, stage: int) -> PacedShards | None:
    """Return the shards of a stage's optimizer; None if it has none."""
    planned = task.all_reduces
    if planned is None or not planned.gathered_bytes:
        return None
    gathered = planned.gathered_of_stage(replica=planned.plan.replica(rank), stage=stage)
    return PacedShards(
        shards=optimizer_shards_of(planned.plan, rank=rank, stage=stage),
        num_values=tuple(task.scale.num_bytes(n) // _GRADIENT.itemsize for n in gathered),
    )


def _zeros(num_bytes: int) -> np.ndarray:
    return np.zeros(max(1, num_bytes // _GRADIENT.itemsize), _GRADIENT)


def _wire(task: PacedTask) -> WireFormat:
    if task.all_reduces is None or task.all_reduces.chunk_bytes == inf:
        return WireFormat(chunk_bytes=_ONE_CHUNK_BYTES)
    chunk_bytes = task.scale.num_bytes(task.all_reduces.chunk_bytes)
    return WireFormat(chunk_bytes=max(_GRADIENT.itemsize, chunk_bytes))


def _placement_only(job: StepModel, *, rank: int) -> Plan:
    """Return a plan that says only on which devices the ranks of a job are."""
    return Plan(
        pipelines=tuple(
            Pipeline(devices=row, cut=(1,) * (len(row) * job.num_chunks), num_microbatches=1)
            for row in job.placement
        ),
        schedule=(),
        tied=False,
        sync=(rank,) * max(len(row) * job.num_chunks for row in job.placement),
        sync_shared=rank,
        sync_all=rank,
        num_chunks=job.num_chunks,
    )
