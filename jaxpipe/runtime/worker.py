"""One rank, ready to compute: its compiled stages and its programs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax

from jaxpipe.comm import (
    BARRIER_TAG,
    CodedTransport,
    CountedTransport,
    ReduceWorker,
    Transport,
    barrier,
    clock_offset,
)
from jaxpipe.runtime.coding import boundary_codecs, gradient_wire
from jaxpipe.runtime.compiled import CompiledStage, compile_stage
from jaxpipe.runtime.feed import eval_feed, train_feed
from jaxpipe.runtime.feedback import copied_errors, settle_errors
from jaxpipe.runtime.interpreter import Interpreter
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.loss_scale import LossScale, adjust, is_finite
from jaxpipe.runtime.mailbox import Patience
from jaxpipe.runtime.recorder import Recorder
from jaxpipe.runtime.reductions import check_all_reduce
from jaxpipe.runtime.totals import Totals
from jaxpipe.runtime.train_state import TrainState
from jaxpipe.runtime.watch import Watch
from jaxpipe.runtime.watched import watch_over
from jaxpipe.schedule import Program

_CLOCK_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a rank needs for every step; `clock_offset_s` leads from its clock to that of rank 0."""

    job: Job
    interpreter: Interpreter
    train_program: Program
    eval_program: Program
    clock_offset_s: float

    @property
    def transport(self) -> Transport:
        """How this rank reaches the others."""
        return self.interpreter.transport

    @property
    def compiled(self) -> Mapping[int, CompiledStage]:
        """What this rank computes, for each stage that it holds."""
        return self.interpreter.compiled

    def train_step(self, state: TrainState, *, step: int) -> tuple[TrainState, Totals]:
        """Train on the batch of a step; steps count from 0. Donates the arrays of `state`.

        A step whose gradients are not finite changes nothing on any rank.
        """
        feed = train_feed(self.job, rank=self.transport.rank, step=step)
        reducer = self.interpreter.reducer
        errors = copied_errors(reducer)
        state, totals = self.interpreter.train(self.train_program, state, feed)
        is_taken = is_finite(totals.square_norm)
        loss_scale, ratio = self._adjusted(state, is_taken=is_taken)
        settle_errors(reducer, errors, is_taken=is_taken, ratio=ratio)
        skipped_steps = state.skipped_steps + (not is_taken)
        return replace(state, loss_scale=loss_scale, skipped_steps=skipped_steps), totals

    def eval_loss(self, state: TrainState) -> float:
        """Return the held-out loss in nats per token, the same on all ranks."""
        num_batches = self.job.train.eval_batches
        feeds = [
            eval_feed(self.job, rank=self.transport.rank, index=index)
            for index in range(num_batches)
        ]
        losses = [self.interpreter.evaluate(self.eval_program, state, f).loss for f in feeds]
        return sum(losses) / (num_batches * self.job.tokens_per_step)

    def _adjusted(self, state: TrainState, *, is_taken: bool) -> tuple[LossScale | None, float]:
        """Return the scale of the next step's loss, and its ratio to that of this step."""
        if self.job.loss_scale is None or state.loss_scale is None:
            return None, 1.0
        adjusted = adjust(self.job.loss_scale, state.loss_scale, finite=is_taken)
        return adjusted, adjusted.scale / state.loss_scale.scale

    def close(self, *, timeout_s: float | None = None) -> None:
        """End the threads that sum gradients and encode messages, after the last step.

        Each may take `timeout_s`, which is that of the run unless said otherwise.

        Raises:
            DeadlineError: one does not end in time.
        """
        timeout_s = self.job.run.timeout_s if timeout_s is None else timeout_s
        self.interpreter.reducer.close(timeout_s=timeout_s)
        self.interpreter.messages.stop(timeout_s=timeout_s)


def start(job: Job, transport: Transport, watch: Watch | None = None) -> Worker:
    """Compile this rank's stages, and return when all ranks have compiled theirs.

    Raises:
        ConfigError: this transport cannot sum as the plan wants it, or this rank has too few
            devices for its mesh.
        DeadlineError: a rank has not done so within `startup_timeout_s`.
    """
    check_all_reduce(job.plan, transport)
    layout = job.layout(jax.local_devices())
    number = transport.rank % job.plan.num_pipeline_ranks
    train_program = job.plan.train_schedule()[number]
    keep_from = max(0, job.train.steps - job.trace.steps)
    counted = CountedTransport(transport)
    interpreter = Interpreter(
        plan=job.plan,
        compiled={
            stage: compile_stage(
                job.functions(stage=stage, rank=transport.rank),
                ops={i.op for i in train_program if i.stage == stage},
                layout=layout,
            )
            for stage in job.plan.stages(transport.rank)
        },
        transport=counted,
        messages=CodedTransport(counted, boundary_codecs(job.comm, job.plan, rank=transport.rank)),
        reducer=ReduceWorker(counted, feeds_back=job.comm.feeds_back),
        wire=gradient_wire(job.comm),
        recorder=Recorder(
            rank=transport.rank, clock=time.perf_counter, keep=lambda step: step >= keep_from
        ),
        patience=Patience(timeout_s=job.run.timeout_s),
        watch=watch or watch_over(job, rank=transport.rank),
    )
    barrier(transport, tag=BARRIER_TAG, timeout_s=job.run.startup_timeout_s)
    num_microbatches = job.plan.num_microbatches
    return Worker(
        job=job,
        interpreter=interpreter,
        train_program=train_program,
        eval_program=job.plan.eval_schedule(num_microbatches=num_microbatches)[number],
        clock_offset_s=clock_offset(
            transport, rounds=_CLOCK_ROUNDS, timeout_s=job.run.timeout_s, clock=time.perf_counter
        ),
    )
