"""Training, as each rank does it: steps, held-out loss, metrics, checkpoints, and the trace."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxpipe.comm import Transport
from jaxpipe.errors import RunError
from jaxpipe.runtime.checkpoint import Checkpoint, latest
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics import MetricsFile, StepMetrics
from jaxpipe.runtime.optimizer import learning_rate
from jaxpipe.runtime.overflows import Overflows
from jaxpipe.runtime.saver import Saver
from jaxpipe.runtime.state_file import restore_state, snapshot
from jaxpipe.runtime.totals import Totals
from jaxpipe.runtime.trace_file import gather_trace, write_trace
from jaxpipe.runtime.trackers import Tracked, Trackers
from jaxpipe.runtime.train_state import TrainState
from jaxpipe.runtime.watch import Watch
from jaxpipe.runtime.watched import watch_over
from jaxpipe.runtime.worker import Worker, start
from jaxpipe.trace import Trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Where the results of a run lie; `picture` is None where matplotlib is missing."""

    checkpoint: Path
    metrics: Path
    trace: Path
    picture: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run that was told to stop after a step, and may go on from its checkpoint."""

    step: int
    checkpoint: Path


def train(
    job: Job,
    transport: Transport,
    *,
    checkpoint: Checkpoint | None,
    observe: Callable[[StepMetrics], None],
    watch: Watch | None = None,
) -> Outcome | Stopped | None:
    """Train to the last step, as one of all ranks of the job; rank 0 returns where results lie.

    With a `checkpoint` training goes on from there, exactly as if it had not stopped; but where the
    codec of gradients feeds errors back, it starts with zero errors, and a warning says so.
    `observe` is called on rank 0 after each step. A `watch` is started once all is compiled. Where
    any rank's is told to stop, all ranks save after the step and stop.

    Raises:
        ConfigError: this transport cannot sum as the plan wants it.
        CheckpointError: the checkpoint is corrupt, or of another model.
        DeadlineError: a rank did not answer in time.
        RunError: three steps in a row had gradients that are not finite, or the last checkpoint
            could not be saved.
    """
    watch = watch or watch_over(job, rank=transport.rank)
    worker = start(job, transport, watch)
    state, first_step = restore_state(worker, checkpoint)
    if checkpoint is not None and transport.rank == 0:
        _warn_of_feedback(job, first_step=first_step)
    saver = Saver(
        transport, folder=job.folder, keep=job.checkpoint.keep, timeout_s=job.run.timeout_s
    )
    training = _Training(
        worker=worker,
        watch=watch,
        saver=saver,
        reporter=_Reporter(job, transport, first_step=first_step, observe=observe),
    )
    watch.start()
    last_step = training.run(state, first_step=first_step)
    _finish(saver)
    watch.stop()
    worker.close()
    trace = gather_trace(worker)
    training.reporter.close()
    if trace is None:
        return None
    if last_step < job.train.steps:
        return Stopped(step=last_step, checkpoint=latest(job.folder))
    return _outcome(job, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """The steps of one rank, and what it does between them."""

    worker: Worker
    watch: Watch
    saver: Saver
    reporter: "_Reporter"

    def run(self, state: TrainState, *, first_step: int) -> int:
        """Train, and return after how many steps it ended: all, or as many as it was told."""
        overflows = Overflows()
        for step in range(first_step, self.worker.job.train.steps):
            before = state
            state, is_stopped = self._step(state, step=step)
            overflows.check(self.worker.transport, before, state, step=step + 1)
            if is_stopped:
                return step + 1
        return self.worker.job.train.steps

    def _step(self, state: TrainState, *, step: int) -> tuple[TrainState, bool]:
        """Train on a step, and return whether a rank was told to stop."""
        job, before, done = self.worker.job, state, step + 1
        self.watch.phase("read samples", step=step)
        begin_s = time.perf_counter()
        state, totals = self.worker.train_step(state, step=step)
        step_s = time.perf_counter() - begin_s
        is_stopped, is_last = totals.stops > 0, done == job.train.steps
        eval_loss = None
        if is_last or done == 1 or (done % job.train.eval_every == 0 and not is_stopped):
            eval_loss = self.worker.eval_loss(state)
        self.watch.phase("report", step=step)
        self.reporter.step(totals, before, state, eval_loss=eval_loss, step=done, step_s=step_s)
        if is_last or is_stopped or done % job.checkpoint.every == 0:
            self.watch.phase("save", step=step)
            self.saver.begin(snapshot(self.worker, state, step=done))
        return state, is_stopped


def _finish(saver: Saver) -> None:
    """Wait for the last checkpoint, without which a run has no result."""
    if (failure := saver.finish()) is not None:
        raise RunError(
            f"the last checkpoint could not be saved: {failure}; make room, and go on with "
            "--resume from the newest one"
        )


def _warn_of_feedback(job: Job, *, first_step: int) -> None:
    if job.comm.feeds_back:
        logger.warning(
            "`comm.gradients` is %s, and a checkpoint does not hold what it has left out: the run "
            "goes on from step %d with zero errors, not bit by bit",
            job.comm.gradients,
            first_step,
        )


def _outcome(job: Job, trace: Trace) -> Outcome:
    path = job.folder / "trace.json"
    return Outcome(
        checkpoint=latest(job.folder),
        metrics=job.metrics_file,
        trace=path,
        picture=write_trace(trace, path=path, picture=job.folder / "timeline.png"),
    )


class _Reporter:
    """Writes and shows the metrics on rank 0, and does nothing elsewhere."""

    def __init__(
        self,
        job: Job,
        transport: Transport,
        *,
        first_step: int,
        observe: Callable[[StepMetrics], None],
    ) -> None:
        self._job = job
        self._observe = observe
        self._rate = learning_rate(job.optimizer, num_steps=job.train.steps)
        self._file = None
        if transport.rank == 0:
            self._file = MetricsFile(
                job.metrics_file,
                job.description,
                first_step=first_step,
                key=secrets.token_hex(4),
            )
            self._trackers = Trackers(job.run.trackers, _tracked(job, self._file, first_step))

    def step(
        self,
        totals: Totals,
        before: TrainState,
        after: TrainState,
        *,
        eval_loss: float | None,
        step: int,
        step_s: float,
    ) -> None:
        """Report a step that is done, which led from one state to another; the first is 1."""
        if self._file is None:
            return
        is_taken = after.skipped_steps == before.skipped_steps
        num_updates = step - 1 - before.skipped_steps
        tokens_per_s = self._job.tokens_per_step / step_s
        metrics = StepMetrics(
            step=step,
            loss=totals.loss / self._job.tokens_per_step,
            eval_loss=eval_loss,
            grad_norm=totals.square_norm**0.5 if is_taken else None,
            learning_rate=float(np.asarray(self._rate(num_updates))),
            step_s=step_s,
            tokens_per_s=tokens_per_s,
            bubble=totals.bubble(num_pipeline_ranks=self._job.plan.num_pipeline_ranks),
            sent_bytes=int(totals.sent_bytes),
            flops_per_s=self._job.flops_per_token * tokens_per_s,
            loss_scale=None if before.loss_scale is None else before.loss_scale.scale,
            skipped_steps=after.skipped_steps,
        )
        self._file.write(metrics)
        self._trackers.tell(metrics)
        self._observe(metrics)

    def close(self) -> None:
        """Let trackers come to their end."""
        if self._file is not None:
            self._trackers.close()


def _tracked(job: Job, file: MetricsFile, first_step: int) -> Tracked:
    return Tracked(
        folder=job.folder,
        project=job.run.project,
        key=file.key,
        first_step=first_step,
        told_step=file.told_step,
        description=job.description,
    )
