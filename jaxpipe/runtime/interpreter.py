"""Executes the program of one rank: instruction by instruction, knowing no schedule by name."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import jax
import numpy as np
import optax
from jaxtyping import Array, Int

from jaxpipe.comm import ALL_REDUCE_TAG, CountedTransport, HostOrDeviceArray, all_reduce
from jaxpipe.plan import Plan
from jaxpipe.runtime.buckets import Buckets
from jaxpipe.runtime.compiled import CompiledStage
from jaxpipe.runtime.mailbox import Mailbox, Patience
from jaxpipe.runtime.model import Parameters
from jaxpipe.runtime.recorder import Recorder
from jaxpipe.runtime.residuals import Residuals
from jaxpipe.runtime.stage import Output, Stage
from jaxpipe.runtime.totals import Totals
from jaxpipe.schedule import Bucket, Instruction, Op, Program
from jaxpipe.trace import Lane

ArrayT = TypeVar("ArrayT", np.ndarray, Array)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """What a step changes: parameters, and the moments of the optimizer."""

    params: Parameters
    moments: optax.OptState


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a replica reads in one step.

    `tokens` are inputs and, shifted by one, targets; None on ranks that need neither.
    `first_microbatch` is the number of the replica's microbatch 0, counted over all replicas.
    """

    step: int
    first_microbatch: int
    tokens: Int[np.ndarray, "microbatches microbatch tokens"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One rank: its stage, its transport, and its place in the plan."""

    plan: Plan
    compiled: CompiledStage
    transport: CountedTransport
    recorder: Recorder
    patience: Patience

    @property
    def replica(self) -> int:
        """The replica that this rank is part of."""
        return self.plan.replica(self.transport.rank)

    def train(self, program: Program, state: TrainState, feed: Feed) -> tuple[TrainState, Totals]:
        """Execute one training step; the arrays of `state` are donated."""
        run = self._run(program, state, feed, trains=True)
        return run.state, run.totals

    def gradients(self, program: Program, state: TrainState, feed: Feed) -> tuple[Buckets, Totals]:
        """Execute a training step but for its update; return the reduced gradients."""
        without_update = tuple(i for i in program if i.op is not Op.UPDATE)
        run = self._run(without_update, state, feed, trains=True)
        return run.buckets, run.totals

    def evaluate(self, program: Program, state: TrainState, feed: Feed) -> Totals:
        """Execute a program of forwards without dropout, which changes nothing."""
        return self._run(program, state, feed, trains=False).totals

    def _run(self, program: Program, state: TrainState, feed: Feed, *, trains: bool) -> "_Run":
        self.recorder.begin(feed.step)
        mailbox = Mailbox(
            program,
            transport=self.transport,
            recorder=self.recorder,
            rank_of=lambda stage: self.plan.rank(replica=self.replica, stage=stage),
            like=self.compiled.activation,
            patience=self.patience,
        )
        run = _Run(
            rank=self,
            mailbox=mailbox,
            feed=feed,
            trains=trains,
            state=state,
            compute=self.compiled.cast(state.params),
            gradients=self.compiled.zeros() if trains else {},
            num_bytes_before=self.transport.num_bytes_sent,
        )
        for instruction in program:
            _HANDLERS[instruction.op](run, instruction)
        return run


@dataclass(slots=True, kw_only=True)
class _Run:
    """One pass through a program, and all that lives no longer than that."""

    rank: Interpreter
    mailbox: Mailbox
    feed: Feed
    trains: bool
    state: TrainState
    compute: Parameters
    gradients: Parameters
    buckets: Buckets = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    residuals: dict[int, Residuals] = field(default_factory=dict)
    num_bytes_before: int

    @property
    def compiled(self) -> CompiledStage:
        return self.rank.compiled

    @property
    def stage(self) -> Stage:
        return self.compiled.functions.stage

    def forward(self, instruction: Instruction) -> None:
        stage, microbatch = instruction.stage, instruction.microbatch
        assert microbatch is not None, instruction
        before = (stage - 1, stage, microbatch)
        x = self._tokens(microbatch, 0) if self.stage.is_first else self.mailbox.take(before)
        targets = self._tokens(microbatch, 1) if self.stage.is_last else None
        with self.rank.recorder.span(Lane.COMPUTE, instruction):
            output = jax.block_until_ready(self._apply(x, targets, microbatch))
        if self.stage.is_last:
            self.totals = replace(self.totals, loss=self.totals.loss + float(output))
        else:
            self.mailbox.put((stage, stage + 1, microbatch), output)

    def backward(self, instruction: Instruction) -> None:
        stage, microbatch = instruction.stage, instruction.microbatch
        assert microbatch is not None, instruction
        behind = (stage + 1, stage, microbatch)
        is_last = self.stage.is_last
        cotangent = self.compiled.loss_cotangent if is_last else self.mailbox.take(behind)
        with self.rank.recorder.span(Lane.COMPUTE, instruction):
            residuals = self.residuals.pop(microbatch)
            of_input, self.gradients = jax.block_until_ready(
                self.compiled.backward(self.compute, residuals, cotangent, self.gradients)
            )
        if not self.stage.is_first:
            self.mailbox.put((stage, stage - 1, microbatch), of_input)

    def send(self, instruction: Instruction) -> None:
        self.mailbox.send(instruction)

    def receive(self, instruction: Instruction) -> None:
        self.mailbox.receive(instruction)

    def reduce(self, instruction: Instruction) -> None:
        self._finish_pipeline()
        bucket = instruction.bucket
        assert bucket is not None, instruction
        if bucket is Bucket.SCALARS:
            total = self._sum(instruction, self._own_totals().to_array())
            self.totals = Totals.from_array(total)
        else:
            self.buckets[bucket] = self._sum(instruction, self.buckets[bucket])

    def update(self, instruction: Instruction) -> None:
        square_norm = np.float32(self.totals.square_norm)
        with self.rank.recorder.span(Lane.UPDATE, instruction):
            params, moments = jax.block_until_ready(
                self.compiled.update(
                    self.state.params, self.state.moments, self.buckets, square_norm
                )
            )
        self.state = TrainState(params=params, moments=moments)

    def _tokens(self, microbatch: int, shift: int) -> Int[np.ndarray, "microbatch seq"]:
        """Return the inputs of a microbatch, or with a shift of 1 its targets."""
        assert self.feed.tokens is not None, "the first and the last stage read tokens"
        tokens = self.feed.tokens[microbatch]
        return tokens[:, shift : tokens.shape[1] - 1 + shift]

    def _apply(
        self, x: HostOrDeviceArray, targets: HostOrDeviceArray | None, microbatch: int
    ) -> Output:
        if not self.trains:
            return self.compiled.evaluate(self.compute, x, targets)
        position = np.array((self.feed.step, self.feed.first_microbatch + microbatch), np.int32)
        output, residuals = self.compiled.forward(self.compute, x, targets, position)
        self.residuals[microbatch] = residuals
        return output

    def _finish_pipeline(self) -> None:
        """Once all is computed: wait until it is sent, and make the gradients ready to travel."""
        self.mailbox.finish_sends()
        if self.trains and not self.buckets:
            self.buckets = self.compiled.pack(self.gradients)
            self.gradients = {}

    def _own_totals(self) -> Totals:
        counts_norm = self.trains and self.rank.replica == 0
        recorder = self.rank.recorder
        return replace(
            self.totals,
            square_norm=float(self.compiled.square_norm(self.buckets)) if counts_norm else 0.0,
            compute_s=recorder.compute_s(),
            pipeline_s=recorder.pipeline_s() if self.stage.is_first else 0.0,
            sent_bytes=float(self.rank.transport.num_bytes_sent - self.num_bytes_before),
        )

    def _sum(self, instruction: Instruction, array: ArrayT) -> ArrayT:
        bucket = instruction.bucket
        assert bucket is not None, instruction
        with self.rank.recorder.span(Lane.REDUCE, instruction, num_bytes=array.nbytes):
            return all_reduce(
                self.rank.transport,
                array,
                self.rank.plan.tree(bucket, stage=instruction.stage),
                tag=ALL_REDUCE_TAG + list(Bucket).index(bucket),
                timeout_s=self.rank.patience.timeout_s,
            )


_HANDLERS: dict[Op, Callable[[_Run, Instruction], None]] = {
    Op.FORWARD: _Run.forward,
    Op.BACKWARD: _Run.backward,
    Op.SEND: _Run.send,
    Op.RECEIVE: _Run.receive,
    Op.REDUCE: _Run.reduce,
    Op.UPDATE: _Run.update,
}
