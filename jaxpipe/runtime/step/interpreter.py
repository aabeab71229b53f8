"""Executes the program of one rank, instruction by instruction; no schedule is known by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from jaxpipe.comm import (
    AllReducer,
    CompressedTransport,
    CountingTransport,
    HostOrDeviceArray,
    WireFormat,
    receive_jax,
)
from jaxpipe.plan import Plan
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.stage.calls import StageCalls
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.loss_scale import is_finite
from jaxpipe.runtime.stage.optimizer import is_unclipped
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.completion_queue import CompletionQueue
from jaxpipe.runtime.step.gradient_sync import GradientSync
from jaxpipe.runtime.step.mailbox import Mailbox, MessageContent, Receive, Timeouts
from jaxpipe.runtime.step.parameter_gather import ParameterGather
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.stage_run import StageRun
from jaxpipe.runtime.step.step_batch import StepBatch
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.watchdog import Watchdog
from jaxpipe.schedule import Bucket, Instruction, Op, Program
from jaxpipe.trace import Lane


def _continue(_: int) -> None:
    """Do nothing between two parts of a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One rank: its stages by their number, its transports, and its position in the plan.

    Messages between stages go through `messages`, which compresses them; `receive` turns them into
    arrays. Everything else goes through `transport`. Gradients are all-reduced in the format
    `wire`; updates clip them to `clip_norm`. At most `in_flight` computes are not complete; with 1,
    the host waits for each compute.
    """

    plan: Plan
    calls: Mapping[int, StageCalls]
    transport: CountingTransport
    messages: CompressedTransport
    reducer: AllReducer
    wire: WireFormat
    recorder: SpanRecorder
    timeouts: Timeouts
    watch: Watchdog
    receive: Receive = receive_jax
    hooks: Hooks = NO_HOOKS
    in_flight: int = 1
    clip_norm: float = 0.0

    @property
    def parameter_gather(self) -> ParameterGather:
        """The all-gather over the replicas of a stage, where they shard its optimizer."""
        return ParameterGather(
            plan=self.plan,
            transport=self.transport,
            timeout_s=self.timeouts.timeout_s,
            chunk_bytes=self.wire.chunk_bytes,
        )

    @property
    def replica(self) -> int:
        """The replica that this rank is part of."""
        return self.plan.replica(self.transport.rank)

    def train(
        self, program: Program, state: TrainState, batch: StepBatch
    ) -> tuple[TrainState, StepTotals]:
        """Execute one training step; the arrays of `state` are donated.

        If the norm in the totals is not finite, no stage of any rank changes.
        """
        return self.train_parts((program,), state, batch, after=_continue)

    def train_parts(
        self,
        parts: Sequence[Program],
        state: TrainState,
        batch: StepBatch,
        *,
        after: Callable[[int], None],
    ) -> tuple[TrainState, StepTotals]:
        """Execute one training step in parts; call `after` with the number of each."""
        run = self._run(parts, state, batch, trains=True, after=after)
        stages = {number: stage.state for number, stage in run.stages.items()}
        return replace(state, stages=stages), run.totals

    def gradients(
        self, program: Program, state: TrainState, batch: StepBatch
    ) -> tuple[dict[int, Buckets], StepTotals]:
        """Execute a training step without its update; return each stage's reduced gradients."""
        without_update = tuple(i for i in program if i.op not in (Op.UPDATE, Op.GATHER))
        run = self._run((without_update,), state, batch, trains=True)
        return {number: stage.buckets for number, stage in run.stages.items()}, run.totals

    def evaluate(self, program: Program, state: TrainState, batch: StepBatch) -> StepTotals:
        """Execute a program of forwards without dropout; no state changes."""
        return self._run((program,), state, batch, trains=False).totals

    def _run(
        self,
        parts: Sequence[Program],
        state: TrainState,
        batch: StepBatch,
        *,
        trains: bool,
        after: Callable[[int], None] = _continue,
    ) -> "_Run":
        run = self._prepare(sum(parts, ()), state, batch, trains=trains)
        for number, part in enumerate(parts):
            for instruction in part:
                # Before it executes: a rank that hangs is reported with what it hangs in.
                self.watch.at(instruction)
                self.hooks.before_instruction(instruction)
                _HANDLERS[instruction.op](run, instruction)
            after(number)
        run.completions.close()
        return run

    def _prepare(
        self, program: Program, state: TrainState, batch: StepBatch, *, trains: bool
    ) -> "_Run":
        self.recorder.start_step(batch.step)
        # One scale for the whole step: the loss is multiplied, and the gradients divided, by it.
        scale = None if state.loss_scale is None else state.loss_scale.scale
        mailbox = Mailbox(
            program,
            transport=self.messages,
            recorder=self.recorder,
            rank_of=lambda stage: self.plan.rank(replica=self.replica, stage=stage),
            num_stages=self.plan.pipelines[self.replica].num_stages,
            content=MessageContent(likes=_boundary_shapes(self.calls), receive=self.receive),
            timeouts=self.timeouts,
        )
        stages = {
            number: StageRun(
                calls=calls,
                state=state.stages[number],
                compute=calls.cast(state.stages[number].params),
                gradients=calls.zeros() if trains else None,
                scale=scale,
            )
            for number, calls in self.calls.items()
        }
        return _Run(
            interpreter=self,
            mailbox=mailbox,
            batch=batch,
            trains=trains,
            scale=scale,
            stages=stages,
            completions=CompletionQueue(
                self.recorder, in_flight=self.in_flight, timeout_s=self.timeouts.timeout_s
            ),
            gradient_sync=GradientSync(
                plan=self.plan,
                rank=self.transport.rank,
                reducer=self.reducer,
                wire=self.wire,
                recorder=self.recorder,
                timeout_s=self.timeouts.timeout_s,
            ),
            num_bytes_before=self.transport.num_stage_bytes_sent,
        )


def _boundary_shapes(calls: Mapping[int, StageCalls]) -> dict[int, jax.ShapeDtypeStruct]:
    """Return what crosses each boundary of these stages, by the number of the stage before it."""
    shapes: dict[int, jax.ShapeDtypeStruct] = {}
    for number, spec in ((number, stage.spec) for number, stage in calls.items()):
        for boundary, array in ((number - 1, spec.received), (number, spec.activation)):
            shapes[boundary] = spec.layout.shape(array.shape, array.dtype)
    return shapes


@dataclass(slots=True, kw_only=True)
class _Run:
    """One execution of a program, and the state that ends with it.

    `forward` to `gather` are the handlers of the ops.
    """

    interpreter: Interpreter
    mailbox: Mailbox
    batch: StepBatch
    trains: bool
    scale: float | None
    stages: dict[int, StageRun]
    completions: CompletionQueue
    gradient_sync: GradientSync
    losses: list[HostOrDeviceArray] = field(default_factory=list)
    totals: StepTotals = field(default_factory=StepTotals)
    num_bytes_before: int

    def forward(self, instruction: Instruction) -> None:
        number, microbatch = instruction.stage, _microbatch(instruction)
        stage, spec = self.stages[number], self.stages[number].calls.spec
        before = (number - 1, number, microbatch)
        x = self.batch.inputs(microbatch) if spec.is_first else self.mailbox.take(before)
        targets = self.batch.targets(microbatch) if spec.is_last else None
        # Counted over all replicas: dropout must not depend on how the batch is distributed.
        position = np.array((self.batch.step, self.batch.first_microbatch + microbatch), np.int32)
        start_s = self.interpreter.recorder.now()
        activation, loss = stage.forward(
            microbatch, x, self.batch.with_parts(targets, microbatch, spec), position
        )
        self._computes(instruction, stage, start_s)
        if targets is not None:
            counted = float(np.count_nonzero(targets != IGNORED))
            self.totals = replace(self.totals, targets=self.totals.targets + counted)
        if loss is not None:
            self.losses.append(loss)  # on the device: reading it here would wait for it
        if activation is not None:
            self.mailbox.put((number, number + 1, microbatch), activation)

    def backward(self, instruction: Instruction) -> None:
        number, microbatch = instruction.stage, _microbatch(instruction)
        stage, behind = self.stages[number], (number + 1, number, microbatch)
        compute = stage.backward if instruction.op is Op.BACKWARD else stage.backward_input
        of_activation = None if stage.calls.spec.is_last else self.mailbox.take(behind)
        start_s = self.interpreter.recorder.now()
        of_input = compute(microbatch, of_activation)
        self._computes(instruction, stage, start_s)
        if of_input is not None:  # the first stage reads samples
            self.mailbox.put((number, number - 1, microbatch), of_input)

    def backward_weight(self, instruction: Instruction) -> None:
        stage, start_s = self.stages[instruction.stage], self.interpreter.recorder.now()
        stage.backward_weight(_microbatch(instruction))
        self._computes(instruction, stage, start_s)

    def send(self, instruction: Instruction) -> None:
        self.mailbox.send(instruction)

    def receive(self, instruction: Instruction) -> None:
        self.mailbox.receive(instruction)

    def reduce(self, instruction: Instruction) -> None:
        if instruction.bucket is Bucket.SCALARS:
            # Every schedule reduces the scalars last, between the last backward and the updates:
            # this is where a rank waits for everything that it has started.
            self._finish_computes()
            if self.trains and self.interpreter.plan.has_whole_replicas:
                self._reduce_scalars_apart(instruction)
            else:
                self._reduce_scalars(instruction)
        elif instruction.bucket is Bucket.TIED:
            self.gradient_sync.start(instruction, self._tied_gradient())
        else:
            vectors = self.stages[instruction.stage].pack()[Bucket.STAGE]
            self.gradient_sync.start(instruction, vectors[self._position(instruction)])

    def update(self, instruction: Instruction) -> None:
        # All ranks have the same totals: they skip a step together, without a message.
        if not is_finite(self.totals.square_norm):
            return
        stage = self.stages[instruction.stage]
        with self.interpreter.recorder.span(Lane.UPDATE, instruction):
            stage.update(self.totals.square_norm, scale=self._gradient_scale(self.totals))

    def gather(self, instruction: Instruction) -> None:
        stage = self.stages[instruction.stage]
        sharded = stage.calls.spec.sharded
        if sharded is None or stage.updated is None:  # the step was skipped
            return
        num_bytes = sharded.num_bytes(stage.updated)
        with self.interpreter.recorder.span(Lane.REDUCE, instruction, num_bytes=num_bytes):
            (vectors,) = self.interpreter.parameter_gather.all_gather(
                [stage.own_shards()], stage=instruction.stage, sizes=sharded.sizes
            )
            stage.join(vectors)

    def _computes(self, instruction: Instruction, stage: StageRun, start_s: float) -> None:
        """Note what the device has been given since `start_s`, and wait while it has too much."""
        self.completions.add(Lane.COMPUTE, instruction, stage.take_dispatched(), start_s=start_s)

    def _tied_gradient(self) -> HostOrDeviceArray:
        """Return the gradient of the tied embedding, added over the stages of this rank.

        A rank that has both the first and the last stage contributes to the all-reduce once.
        """
        packed = [stage.pack() for stage in self.stages.values()]
        first, *others = [arrays[Bucket.TIED][0] for arrays in packed if Bucket.TIED in arrays]
        return sum(others, first)

    def _finish_computes(self) -> None:
        """Wait for all computes, then for all sends.

        A peer that waits for one of these has not started its all-reduces yet. Stages without an
        all-reduce, because they have one replica, pack their gradients here.
        """
        self.completions.wait()
        self.mailbox.finish_sends()
        for stage in self.stages.values() if self.trains else ():
            stage.pack()  # does nothing where an all-reduce has packed them

    def _store_gradients(self, is_needed: Callable[[Instruction], bool]) -> None:
        """Wait for those gradients that are needed, and store them where updates read them."""
        for instruction, total in self.gradient_sync.wait(is_needed):
            self._store(instruction, total)

    def _counts(self, reduction: Instruction) -> bool:
        """Return whether the norm that this rank contributes has the gradients of a reduction.

        The norm is that of replica 0, in which the first stage counts a tied embedding.
        """
        if self.interpreter.replica != 0:
            return False
        return reduction.bucket is not Bucket.TIED or 0 in self.stages

    def _reduce_scalars(self, scalars: Instruction) -> None:
        """Sum the scalars, the norm among them, and wait for all gradients.

        Gradients that are not in the norm are waited for last: a latency less for all ranks.
        """
        self._store_gradients(self._counts)
        totals = self._own_totals(square_norm=self._own_square_norm())
        transport = self.interpreter.transport
        summed = self.gradient_sync.reduce_scalars(scalars, self._with_phase(totals), transport)
        self.totals = self._summed(summed)
        self._store_gradients(lambda _: True)

    def _reduce_scalars_apart(self, scalars: Instruction) -> None:
        """Sum the scalars beside the gradients, and the norm behind them, on ranks of all stages.

        Each rank has all gradients, so it knows the norm. Only where it may be clipped, or is not
        finite, does it wait for that of replica 0, another latency: the norms of replicas on unlike
        devices may differ in their last bits, and parameters must not. The others leave the
        message to the thread of its tag.
        """
        sync, counts = self.gradient_sync, self.interpreter.replica == 0
        sync.start(scalars, self._with_phase(self._own_totals(square_norm=0.0)))
        norm = None if counts else sync.start_norm(0.0)
        self._store_gradients(lambda reduction: reduction.bucket is not Bucket.SCALARS)
        square_norm = self._own_square_norm()
        norm = norm or sync.start_norm(square_norm)
        ((_, summed),) = sync.wait(lambda _: True)
        self.totals = self._summed(summed, square_norm=square_norm)
        if not (counts or is_unclipped(self.totals.square_norm, self.interpreter.clip_norm)):
            of_replica_0 = norm.wait(timeout_s=self.interpreter.timeouts.timeout_s)
            self.totals = self._summed(summed, square_norm=float(of_replica_0[0]))

    def _with_phase(self, totals: StepTotals) -> np.ndarray:
        """Return totals of this rank, and behind them the phase of each rank: its own, else 0."""
        # Of the phases of a replica the longest counts, which no sum shows.
        phases_s = np.zeros(self.interpreter.plan.num_ranks)
        phases_s[self.interpreter.transport.rank] = self.interpreter.recorder.pipeline_s()
        return np.concatenate([totals.to_array(), phases_s])

    def _summed(self, summed: np.ndarray, *, square_norm: float | None = None) -> StepTotals:
        """Return the totals of the sums over all ranks, with the norm that is given or theirs."""
        phases_s = summed[summed.size - self.interpreter.plan.num_ranks :]
        of_ranks = np.split(phases_s, self.interpreter.plan.first_ranks[1:])
        pipeline_s = sum(of_replica.size * of_replica.max() for of_replica in of_ranks)
        totals = StepTotals.from_array(summed[: summed.size - phases_s.size])
        totals = replace(totals, pipeline_s=float(pipeline_s))
        if square_norm is not None:
            totals = replace(totals, square_norm=square_norm)
        return totals.unscaled(self._gradient_scale(totals))

    def _gradient_scale(self, totals: StepTotals) -> float | None:
        """Return by how much gradients are larger than those of the mean loss; None for 1.

        The cotangent of the loss is that of a mean over all targets, known before the step. How
        many count, over all replicas, is known once the scalars are reduced.
        """
        spec = next(iter(self.stages.values())).calls.spec
        if not spec.masked:
            return self.scale
        return (self.scale or 1.0) * max(totals.targets, 1.0) * float(spec.loss_cotangent)

    def _store(self, done: Instruction, total: HostOrDeviceArray) -> None:
        """Store a reduced bucket in every stage that updates with it."""
        bucket = done.bucket
        assert bucket is not None, done
        for number, stage in self.stages.items():
            if number == done.stage or (bucket is Bucket.TIED and bucket in stage.buckets):
                vectors = list(stage.buckets[bucket])
                vectors[self._position(done)] = total
                stage.buckets[bucket] = tuple(vectors)

    def _position(self, reduction: Instruction) -> int:
        """Return the position of a reduction's vector in its bucket of its stage."""
        if reduction.segment is None:
            return 0
        interpreter = self.interpreter
        segments = interpreter.plan.segments_of(replica=interpreter.replica, stage=reduction.stage)
        return segments.index(reduction.segment)

    def _own_square_norm(self) -> float:
        """Return the squared norm that this rank contributes; its gradients must be reduced.

        After the all-reduce all replicas have the same gradients: replica 0 counts their norm, and
        with whole replicas each one for itself.
        """
        interpreter = self.interpreter
        if not self.trains or (interpreter.replica and not interpreter.plan.has_whole_replicas):
            return 0.0
        return sum(stage.square_norm() for stage in self.stages.values())

    def _own_totals(self, *, square_norm: float) -> StepTotals:
        """Return this rank's contribution to the totals."""
        interpreter = self.interpreter
        return replace(
            self.totals,
            # In float64: in float32, a sum over many microbatches would lose digits.
            loss=sum(map(float, self.losses)),
            square_norm=square_norm,
            compute_s=interpreter.recorder.compute_s(),
            # Gradients may be under way still. Without this all-reduce: no step counts its bytes.
            sent_bytes=float(
                interpreter.transport.num_stage_bytes_sent
                - self.num_bytes_before
                + self.gradient_sync.num_bytes
            ),
            stops=float(interpreter.watch.stop_requested),
        )


def _microbatch(instruction: Instruction) -> int:
    assert instruction.microbatch is not None, instruction
    return instruction.microbatch


_HANDLERS: dict[Op, Callable[[_Run, Instruction], None]] = {
    Op.FORWARD: _Run.forward,
    Op.BACKWARD: _Run.backward,
    Op.BACKWARD_INPUT: _Run.backward,
    Op.BACKWARD_WEIGHT: _Run.backward_weight,
    Op.SEND: _Run.send,
    Op.RECEIVE: _Run.receive,
    Op.REDUCE: _Run.reduce,
    Op.UPDATE: _Run.update,
    Op.GATHER: _Run.gather,
}
