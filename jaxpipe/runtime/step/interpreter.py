"""Executes the program of one rank: instruction by instruction, knowing no schedule by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from jaxpipe.comm import (
    AllReducer,
    CompressedTransport,
    CountingTransport,
    WireFormat,
    all_reduce,
    receive_jax,
)
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.loss_scale import is_finite
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.gradient_sync import GradientSync, reduction_tag
from jaxpipe.runtime.step.mailbox import Content, Mailbox, Receive, Timeouts
from jaxpipe.runtime.step.parameter_gather import ParameterGather
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.stage_run import StageRun
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.watchdog import Watchdog
from jaxpipe.schedule import Bucket, Instruction, Op, Program
from jaxpipe.trace import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What a replica reads in one step.

    `tokens` are inputs and, shifted by one, targets; None on ranks that need neither.
    `first_microbatch` is the number of the replica's microbatch 0, counted over all replicas.
    """

    step: int
    first_microbatch: int
    tokens: Int[np.ndarray, "microbatches microbatch tokens"] | None


def _nothing(_: int) -> None:
    """Do nothing between two parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One rank: its stages by their number, its transport, and its place in the plan.

    Messages between stages go through `messages`, and `receive` makes arrays of them; gradients
    travel as `wire` says.
    """

    plan: Plan
    compiled: Mapping[int, CompiledStage]
    transport: CountingTransport
    messages: CompressedTransport
    reducer: AllReducer
    wire: WireFormat
    recorder: SpanRecorder
    patience: Timeouts
    watch: Watchdog
    receive: Receive = receive_jax

    @property
    def sharing(self) -> ParameterGather:
        """How replicas gather what they share out."""
        return ParameterGather(
            plan=self.plan,
            transport=self.transport,
            timeout_s=self.patience.timeout_s,
            chunk_bytes=self.wire.chunk_bytes,
        )

    @property
    def replica(self) -> int:
        """The replica that this rank is part of."""
        return self.plan.replica(self.transport.rank)

    def train(
        self, program: Program, state: TrainState, feed: StepBatch
    ) -> tuple[TrainState, StepTotals]:
        """Execute one training step; the arrays of `state` are donated.

        Where the totals' norm is not finite, no stage of any rank changes.
        """
        return self.train_parts((program,), state, feed, after=_nothing)

    def train_parts(
        self,
        parts: Sequence[Program],
        state: TrainState,
        feed: StepBatch,
        *,
        after: Callable[[int], None],
    ) -> tuple[TrainState, StepTotals]:
        """Execute one training step in parts; `after` is called with the number of each of them."""
        run = self._run(parts, state, feed, trains=True, after=after)
        stages = {number: held.state for number, held in run.stages.items()}
        return replace(state, stages=stages), run.totals

    def gradients(
        self, program: Program, state: TrainState, feed: StepBatch
    ) -> tuple[dict[int, Buckets], StepTotals]:
        """Execute a training step but for its update; return each stage's reduced gradients."""
        without_update = tuple(i for i in program if i.op is not Op.UPDATE)
        run = self._run((without_update,), state, feed, trains=True)
        return {number: held.buckets for number, held in run.stages.items()}, run.totals

    def evaluate(self, program: Program, state: TrainState, feed: StepBatch) -> StepTotals:
        """Execute a program of forwards without dropout, which changes nothing."""
        return self._run((program,), state, feed, trains=False).totals

    def _run(
        self,
        parts: Sequence[Program],
        state: TrainState,
        feed: StepBatch,
        *,
        trains: bool,
        after: Callable[[int], None] = _nothing,
    ) -> "_Run":
        run = self._begin(sum(parts, ()), state, feed, trains=trains)
        for number, part in enumerate(parts):
            for instruction in part:
                self.watch.at(instruction)
                _HANDLERS[instruction.op](run, instruction)
            after(number)
        return run

    def _begin(
        self, program: Program, state: TrainState, feed: StepBatch, *, trains: bool
    ) -> "_Run":
        self.recorder.begin(feed.step)
        scale = None if state.loss_scale is None else state.loss_scale.scale
        any_stage = next(iter(self.compiled.values()))
        activation = any_stage.activation
        mailbox = Mailbox(
            program,
            transport=self.messages,
            recorder=self.recorder,
            rank_of=lambda stage: self.plan.rank(replica=self.replica, stage=stage),
            num_stages=self.plan.num_stages,
            content=Content(
                like=any_stage.layout.shape(activation.shape, activation.dtype),
                receive=self.receive,
            ),
            patience=self.patience,
        )
        stages = {
            number: StageRun(
                compiled=compiled,
                state=state.stages[number],
                compute=compiled.cast(state.stages[number].params),
                gradients=compiled.zeros() if trains else None,
                scale=scale,
            )
            for number, compiled in self.compiled.items()
        }
        return _Run(
            rank=self,
            mailbox=mailbox,
            feed=feed,
            trains=trains,
            scale=scale,
            stages=stages,
            reductions=GradientSync(
                plan=self.plan,
                worker=self.reducer,
                wire=self.wire,
                recorder=self.recorder,
                timeout_s=self.patience.timeout_s,
            ),
            num_bytes_before=self.transport.num_bytes_sent,
        )


@dataclass(slots=True, kw_only=True)
class _Run:
    """One pass through a program, and all that lives no longer than that."""

    rank: Interpreter
    mailbox: Mailbox
    feed: StepBatch
    trains: bool
    scale: float | None
    stages: dict[int, StageRun]
    reductions: GradientSync
    totals: StepTotals = field(default_factory=StepTotals)
    num_bytes_before: int

    def forward(self, instruction: Instruction) -> None:
        number, microbatch = instruction.stage, _microbatch(instruction)
        held = self.stages[number]
        before = (number - 1, number, microbatch)
        x = self._tokens(microbatch, 0) if held.compiled.is_first else self.mailbox.take(before)
        targets = self._tokens(microbatch, 1) if held.compiled.is_last else None
        position = np.array((self.feed.step, self.feed.first_microbatch + microbatch), np.int32)
        with self.rank.recorder.span(Lane.COMPUTE, instruction):
            output = held.forward(microbatch, x, targets, position)
        if held.compiled.is_last:
            self.totals = replace(self.totals, loss=self.totals.loss + float(output))
        else:
            self.mailbox.put((number, number + 1, microbatch), output)

    def backward(self, instruction: Instruction) -> None:
        number, microbatch = instruction.stage, _microbatch(instruction)
        held, behind = self.stages[number], (number + 1, number, microbatch)
        compute = held.backward if instruction.op is Op.BACKWARD else held.backward_input
        is_last = held.compiled.is_last
        cotangent = held.loss_cotangent if is_last else self.mailbox.take(behind)
        with self.rank.recorder.span(Lane.COMPUTE, instruction):
            of_input = compute(microbatch, cotangent)
        if of_input is not None:
            self.mailbox.put((number, number - 1, microbatch), of_input)

    def backward_weight(self, instruction: Instruction) -> None:
        with self.rank.recorder.span(Lane.COMPUTE, instruction):
            self.stages[instruction.stage].backward_weight(_microbatch(instruction))

    def send(self, instruction: Instruction) -> None:
        self.mailbox.send(instruction)

    def receive(self, instruction: Instruction) -> None:
        self.mailbox.receive(instruction)

    def reduce(self, instruction: Instruction) -> None:
        if instruction.bucket is Bucket.SCALARS:
            self._finish(instruction)
        elif instruction.bucket is Bucket.TIED:
            self.reductions.begin(instruction, self._shared())
        else:
            held = self.stages[instruction.stage]
            self.reductions.begin(instruction, held.pack()[Bucket.STAGE])

    def update(self, instruction: Instruction) -> None:
        if not is_finite(self.totals.square_norm):
            return
        held = self.stages[instruction.stage]
        with self.rank.recorder.span(Lane.UPDATE, instruction):
            held.update(self.totals.square_norm)
        functions = held.compiled.shared_out
        if functions is None or held.updated is None:
            return
        share = functions.parts(held.updated)[Bucket.STAGE]
        num_bytes = sum(piece.nbytes for piece in jax.tree.leaves(share))
        with self.rank.recorder.span(Lane.REDUCE, instruction, name="gather", num_bytes=num_bytes):
            held.gather(partial(self.rank.sharing.gather, stage=instruction.stage))

    def _tokens(self, microbatch: int, shift: int) -> Int[np.ndarray, "microbatch seq"]:
        """Return the inputs of a microbatch, or with a shift of 1 its targets."""
        assert self.feed.tokens is not None, "the first and the last stage read tokens"
        tokens = self.feed.tokens[microbatch]
        return tokens[:, shift : tokens.shape[1] - 1 + shift]

    def _shared(self) -> Any:
        """Return the gradient of the tied embedding, summed over the stages held here."""
        packed = [held.pack() for held in self.stages.values()]
        first, *others = [each[Bucket.TIED] for each in packed if Bucket.TIED in each]
        return sum(others, first)

    def _finish(self, instruction: Instruction) -> None:
        """Wait for all that is under way, and sum the scalars over all ranks."""
        self.mailbox.finish_sends()
        for held in self.stages.values() if self.trains else ():
            held.pack()
        for done, total in self.reductions.finish():
            self._place(done, total)
        scalars = self._own_totals().to_array()
        with self.rank.recorder.span(Lane.REDUCE, instruction, num_bytes=scalars.nbytes):
            total = all_reduce(
                self.rank.transport,
                scalars,
                self.rank.plan.tree(Bucket.SCALARS, stage=instruction.stage),
                tag=reduction_tag(instruction),
                timeout_s=self.rank.patience.timeout_s,
            )
        self.totals = StepTotals.from_array(total).unscaled(self.scale)

    def _place(self, done: Instruction, total: Any) -> None:
        """Put a sum where its update looks for it."""
        bucket = done.bucket
        assert bucket is not None, done
        for number, held in self.stages.items():
            if number == done.stage or (bucket is Bucket.TIED and bucket in held.buckets):
                held.buckets[bucket] = total

    def _own_totals(self) -> StepTotals:
        counts_norm = self.trains and self.rank.replica == 0
        holds_first = any(held.compiled.is_first for held in self.stages.values())
        recorder = self.rank.recorder
        return replace(
            self.totals,
            square_norm=sum(h.square_norm() for h in self.stages.values()) if counts_norm else 0.0,
            compute_s=recorder.compute_s(),
            pipeline_s=recorder.pipeline_s() if holds_first else 0.0,
            sent_bytes=float(self.rank.transport.num_bytes_sent - self.num_bytes_before),
            stops=float(self.rank.watch.stop_requested),
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
}
