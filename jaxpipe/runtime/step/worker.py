"""One rank, ready to train: its compiled stages, its programs, its transports and their codecs.

A codec with error feedback adds its residual to the gradients of the next step
(`AsyncAllReduce.errors`), so both must have the same loss scale. A skipped step has consumed the
old residual and produced one from gradients that are never applied: residuals are copied before a
step, and the copies are restored if the step is skipped.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count

import jax
import numpy as np

from jaxpipe.collective import codec_of
from jaxpipe.collective.codec.codec import Codec
from jaxpipe.comm import (
    BARRIER_TAG,
    AllReducer,
    AsyncAllReduce,
    CompressedTransport,
    CountingTransport,
    Transport,
    WireFormat,
    barrier,
    clock_offset,
)
from jaxpipe.plan import Plan
from jaxpipe.runtime.config import CommConfig
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.job_part import JobPart, part_of
from jaxpipe.runtime.stage.calls import StageCalls
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.loss_scale import LossScale, adjust, is_finite
from jaxpipe.runtime.stage.mesh import StageLayout
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.batch import eval_step_batch, train_step_batch
from jaxpipe.runtime.step.completion_queue import instructions_in_flight
from jaxpipe.runtime.step.interpreter import Interpreter
from jaxpipe.runtime.step.mailbox import Timeouts
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.watchdog import Watchdog
from jaxpipe.runtime.watchdog.of_job import StartWork, begin_work, start_watchdog
from jaxpipe.schedule import Program

_CLOCK_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A rank between steps, of an island of an outer loop or of the whole job.

    `clock_offset_s` is the difference of the clock of rank 0 of all to its own.
    """

    part: JobPart
    interpreter: Interpreter
    train_program: Program
    eval_program: Program
    clock_offset_s: float

    @property
    def job(self) -> Job:
        """The job of the ranks that train in step with this one."""
        return self.part.job

    @property
    def whole(self) -> Job:
        """The job of all ranks."""
        return self.part.whole_job

    @property
    def transport(self) -> Transport:
        """The transport to the ranks of `job`, without compression."""
        return self.interpreter.transport

    @property
    def everyone(self) -> Transport:
        """The transport to all ranks."""
        return self.part.everyone

    @property
    def calls(self) -> Mapping[int, StageCalls]:
        """The stages of this rank, by their number."""
        return self.interpreter.calls

    def train_step(self, state: TrainState, *, step: int) -> tuple[TrainState, StepTotals]:
        """Train on the batch of a step; steps count from 0. Donates the arrays of `state`.

        A step whose gradients are not finite changes nothing on any rank.
        """
        rank, hooks = self.everyone.rank, self.interpreter.hooks
        batch = train_step_batch(self.whole, rank=rank, step=step)
        hooks.after_read(self.whole.plan, batch.samples, rank=rank, step=step)
        reducer = self.interpreter.reducer
        errors = copied_errors(reducer)  # whether the step is skipped is known only at its end
        state, totals = self.interpreter.train(self.train_program, state, batch)
        is_taken = is_finite(totals.square_norm)
        loss_scale, ratio = self._adjusted(state, is_taken=is_taken)
        settle_errors(reducer, errors, is_taken=is_taken, ratio=ratio)
        skipped_steps = state.skipped_steps + (not is_taken)
        return replace(state, loss_scale=loss_scale, skipped_steps=skipped_steps), totals

    def eval_loss(self, state: TrainState) -> float:
        """Return the held-out loss in nats per target, the same on all ranks of `job`."""
        loss, num_targets = self.eval_sums(state)
        # Losses are summed over targets: one division at the end weighs all targets alike.
        return loss / max(num_targets, 1.0)

    def eval_sums(self, state: TrainState) -> tuple[float, float]:
        """Return the held-out loss, summed, and the number of targets that count."""
        self.interpreter.hooks.before_evaluation()
        num_batches = self.whole.num_eval_batches
        batches = [
            eval_step_batch(self.whole, rank=self.everyone.rank, index=index)
            for index in range(num_batches)
        ]
        results = [self.interpreter.evaluate(self.eval_program, state, batch) for batch in batches]
        return sum(result.loss for result in results), sum(result.targets for result in results)

    def _adjusted(self, state: TrainState, *, is_taken: bool) -> tuple[LossScale | None, float]:
        """Return the scale of the next step's loss, and its ratio to that of this step."""
        if self.job.loss_scale is None or state.loss_scale is None:
            return None, 1.0
        adjusted = adjust(self.job.loss_scale, state.loss_scale, finite=is_taken)
        return adjusted, adjusted.scale / state.loss_scale.scale

    def close(self, *, timeout_s: float | None = None) -> None:
        """End the threads that reduce gradients and compress messages, after the last step.

        `timeout_s` is for each of them, by default that of the run.

        Raises:
            DeadlineError: a thread did not end in time.
        """
        timeout_s = self.job.run.timeout_s if timeout_s is None else timeout_s
        self.interpreter.reducer.close(timeout_s=timeout_s)
        self.interpreter.messages.stop(timeout_s=timeout_s)


def start(
    job: Job,
    transport: Transport,
    watch: Watchdog | None = None,
    *,
    hooks: Hooks = NO_HOOKS,
    compiler: Callable[..., CompiledStage] | None = None,
) -> Worker:
    """Compile this rank's stages, and return when all ranks have compiled theirs.

    The `compiler` is `compile_stage`, unless ranks are threads that share one.

    Raises:
        ConfigError: this transport does not support the plan's all-reduce, or this rank has too few
            devices for its mesh.
        DeadlineError: a rank has not compiled its stages within `startup_timeout_s`.
    """
    # Both checks come before compiling, which may take minutes.
    part = part_of(job, transport)
    layout = job.layout(jax.local_devices(), rank=transport.rank)
    plan, rank = part.job.plan, part.transport.rank
    replica, number = plan.replica(rank), plan.number(rank)
    train_program = plan.train_schedule(replica=replica, sharded=job.optimizer.sharded)[number]
    counted = CountingTransport(part.transport)
    watch = watch or start_watchdog(job, rank=transport.rank)
    begin_work(watch, job, StartWork.COMPILE)

    interpreter = Interpreter(
        plan=plan,
        calls=_compiled_stages(part, layout, train_program, hooks=hooks, compiler=compiler),
        transport=counted,
        messages=CompressedTransport(counted, boundary_codecs(job.comm, plan, rank=rank)),
        reducer=AsyncAllReduce(counted, feeds_back=job.comm.feeds_back),
        wire=gradient_wire(job.comm),
        recorder=_recorder(part, rank=transport.rank),
        timeouts=Timeouts(timeout_s=job.run.timeout_s),
        watch=watch,
        hooks=hooks,
        in_flight=instructions_in_flight(jax.default_backend()),
        clip_norm=job.optimizer.clip_norm,
    )
    hooks.after_compile()
    # Compiling takes from seconds to minutes, and differs between ranks. Waiting for the slowest
    # here, with a timeout of its own, lets the first step have the short one of all steps.
    begin_work(watch, job, StartWork.COMPILED)
    barrier(transport, tag=BARRIER_TAG, timeout_s=job.run.startup_timeout_s)
    evaluate = plan.eval_schedule(
        num_microbatches=plan.pipelines[replica].num_microbatches, replica=replica
    )
    begin_work(watch, job, StartWork.CLOCKS)
    # The clock offset comes after the barrier: round trips to a rank that compiles would take long.
    return Worker(
        part=part,
        interpreter=interpreter,
        train_program=train_program,
        eval_program=evaluate[number],
        clock_offset_s=clock_offset(
            transport, rounds=_CLOCK_ROUNDS, timeout_s=job.run.timeout_s, clock=time.perf_counter
        ),
    )


def _recorder(part: JobPart, *, rank: int) -> SpanRecorder:
    """Return the recorder of the last steps.

    Of a run that is stopped earlier, no spans are kept, and memory is bounded.
    """
    keep_from = max(0, part.whole_job.train.steps - part.whole_job.trace.steps)
    return SpanRecorder(
        rank=rank,
        clock=time.perf_counter,
        keep=lambda step: step >= keep_from,
        first_rank=part.island.ranks.start,
    )


def _compiled_stages(
    part: JobPart,
    layout: StageLayout,
    program: Program,
    *,
    hooks: Hooks,
    compiler: Callable[..., CompiledStage] | None,
) -> dict[int, StageCalls]:
    """Compile the stages of this rank for the instructions of its program."""
    plan, rank = part.job.plan, part.transport.rank
    stages = plan.stages(rank)
    functions = {
        stage: part.job.functions(stage=stage, rank=rank, layout=layout) for stage in stages
    }
    ops = {stage: {i.op for i in program if i.stage == stage} for stage in stages}
    total = sum(num_executables(functions[stage], ops=ops[stage]) for stage in stages)
    numbers = count()

    def compiled(stage: int) -> StageCalls:
        return (compiler or compile_stage)(
            functions[stage],
            ops=ops[stage],
            precision=part.job.run.matmul_precision,
            before_each=lambda: hooks.before_compile(done=next(numbers), total=total),
        )

    return {stage: compiled(stage) for stage in stages}


def boundary_codecs(comm: CommConfig, plan: Plan, *, rank: int) -> dict[int, Codec]:
    """Return the codec for each rank with a stage before or after one of this rank's stages.

    It is that of the plan for the boundary, or else the configured one. A plan has its own only
    where each rank has one stage, so a pair of ranks never has two.
    """
    replica, pipeline = plan.replica(rank), plan.pipeline(rank)
    kinds = pipeline.codecs or (comm.boundary,) * (pipeline.num_stages - 1)
    codecs: dict[int, Codec] = {}
    for boundary, kind in enumerate(kinds):
        ends = {plan.rank(replica=replica, stage=boundary + side) for side in (0, 1)}
        codec = codec_of(kind)
        if rank in ends and codec is not None:
            # Between own stages there are no messages.
            codecs |= dict.fromkeys(ends - {rank}, codec)
    return codecs


def gradient_wire(comm: CommConfig) -> WireFormat:
    """Return the format of messages in gradient all-reduces."""
    codec = codec_of(comm.gradients, top_k_fraction=comm.top_k_fraction)
    return WireFormat(far=codec, chunk_bytes=comm.chunk_bytes)


def copied_errors(reducer: AllReducer) -> dict[int, np.ndarray]:
    """Return copies of the residuals of error feedback, by the tag of the all-reduce."""
    return {tag: errors.copy() for tag, errors in reducer.errors.items()}


def settle_errors(
    reducer: AllReducer, before: dict[int, np.ndarray], *, is_taken: bool, ratio: float
) -> None:
    """Restore the residuals `before` the step if it was skipped, and rescale them for the next one.

    `ratio` is the loss scale of the next step over that of this one. No all-reduce may be under
    way; the copies in `before` are used without copying them again.
    """
    if not is_taken:
        reducer.errors = before
    # Residuals are scaled gradients: those of the next step will have another scale.
    if ratio != 1:
        for errors in reducer.errors.values():
            np.multiply(errors, np.float32(ratio), out=errors)
