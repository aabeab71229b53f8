"""The training loop of a rank: steps, held-out loss, metrics, checkpoints, and the trace.

::

    start (compile) ─ restore ─┬─ step ─ held-out loss ─ report ─ save ─┬─ trace ─ Outcome
                               └────────────── next step ───────────────┘
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxpipe.comm import LoggedTransport, MessageLog, Transport
from jaxpipe.errors import RunError
from jaxpipe.jaxpr import warn_if_untested
from jaxpipe.outer import saved_outer
from jaxpipe.runtime.checkpoint import latest
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.checkpoint.own_disks.commit_by_message import CommitByMessage
from jaxpipe.runtime.checkpoint.own_disks.copies import copies_of
from jaxpipe.runtime.checkpoint.own_disks.fetch import gather_on_rank_0
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.config import LinkDetail
from jaxpipe.runtime.data.order.position import ORDER, position_after
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.kept_metrics import restore_metrics, with_metrics
from jaxpipe.runtime.metrics.link_reporter import LinkReporter, link_report
from jaxpipe.runtime.metrics.metrics_file import MetricsFile
from jaxpipe.runtime.metrics.records import (
    METRICS_FILE,
    PICTURE_FILE,
    TRACE_FILE,
    StepMetrics,
)
from jaxpipe.runtime.metrics.step_result import StepEnd
from jaxpipe.runtime.metrics.trace_file import gather_trace, write_trace
from jaxpipe.runtime.metrics.trackers import TrackedRun, Trackers
from jaxpipe.runtime.open_transport import kind_of
from jaxpipe.runtime.outer.met_islands import met
from jaxpipe.runtime.outer.outer_loop import OuterEnd, OuterLoop
from jaxpipe.runtime.outer.outer_snapshot import outer_snapshot, start_outer
from jaxpipe.runtime.outer.quorum_loop import QuorumLoop, joined_quorum
from jaxpipe.runtime.process.compile_cache import publish
from jaxpipe.runtime.recovery.last_state import LastState, Trained
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.nonfinite import NonfiniteSteps
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.step.worker import Worker, start
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.train_snapshot import Saved, restore_state, snapshot
from jaxpipe.runtime.watchdog import Watchdog
from jaxpipe.runtime.watchdog.of_job import StartWork, begin_work, start_watchdog
from jaxpipe.trace import LinkReport, Trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The files of a completed run; `trace` and `picture` are None if they could not be written."""

    checkpoint: Folder
    metrics: Path
    trace: Path | None
    picture: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run that was stopped on request, after a step from whose checkpoint it can resume."""

    step: int
    checkpoint: Folder


def train(  # noqa: PLR0913  each is another part of a run
    job: Job,
    transport: Transport,
    *,
    checkpoint: Saved | None,
    observe: Callable[[StepMetrics], None],
    watch: Watchdog | None = None,
    last_state: LastState | None = None,
    hooks: Hooks = NO_HOOKS,
    compiler: Callable[..., CompiledStage] | None = None,
) -> Outcome | Stopped | None:
    """Train to the last step; every rank of the job calls this, and rank 0 returns the results.

    With a `checkpoint` training continues exactly as if it had not stopped, with one exception: a
    codec with error feedback starts with zero errors, and a warning says so. The callback `observe`
    receives the metrics of each step, on rank 0. The watchdog `watch` is started, before the stages
    are compiled; if that of any rank is asked to stop, all ranks save after the step and stop.
    `last_state` follows the training; the report and the checkpoint of its `unfinished` step are
    repeated first. The `hooks` are called at their points. The `compiler` is `compile_stage`
    if none is given.

    Raises:
        ConfigError: this transport does not support the plan's all-reduce.
        CheckpointError: the checkpoint is corrupt, or of another model.
        DeadlineError: a rank did not answer in time.
        RunError: three steps in a row had gradients that are not finite, or the last checkpoint
            could not be saved.
    """
    watch = watch or start_watchdog(job, rank=transport.rank)
    last_state = last_state or LastState()
    log = MessageLog(rank=transport.rank)
    job = _as_it_runs(job, transport, checkpoint)
    if job.trace.links is not LinkDetail.NONE:
        transport = LoggedTransport(transport, log)
    if transport.rank == 0:
        warn_if_untested()
    last_state.watched_by(watch)
    watch.start()
    # Compiled first: fresh parameters come from an executable, restored ones go to its layout.
    worker = start(job, transport, watch, hooks=hooks, compiler=compiler)
    begin_work(watch, job, StartWork.RESTORE)
    outer, state, first_step = _restored(worker, checkpoint)
    quorum = None
    if job.quorum.is_on:
        quorum, state = joined_quorum(worker, state, step=first_step)
    if checkpoint is not None and transport.rank == 0:
        _warn_of_lost_feedback(job, first_step=first_step)
    saver = _saver(job, transport, hooks=hooks)
    unfinished = last_state.unfinished
    num_reported = first_step if unfinished is None else first_step - 1
    if checkpoint is not None and transport.rank == 0:
        restore_metrics(job, checkpoint, num_steps=num_reported)
    training = _Training(
        worker=worker,
        outer=outer,
        quorum=quorum,
        watch=watch,
        saver=saver,
        reporter=_Reporter(job, transport, first_step=num_reported, observe=observe),
        links=LinkReporter(
            job,
            transport,
            log,
            clock_offset_s=worker.clock_offset_s,
            first_step=num_reported,
        ),
        last_state=last_state,
    )
    trained = Trained(worker=worker, state=state, step=first_step, ended=unfinished)
    last_state.start_from(trained, saver=saver)
    publish(os.environ)
    last_step = training.run(state, first_step=first_step)
    # In this order: a rank may still hang in the last save; the reducer's threads end with the
    # steps; and the trace is gathered over the main transport, when nothing else is under way.
    watch.phase("save", step=last_step - 1, limit_s=job.save_timeout_s)
    _finish(saver)
    watch.finish()
    training.close()
    if last_step == job.train.steps and job.disks is not None and job.has_own_checkpoints:
        timeout_s = job.run.startup_timeout_s
        gather_on_rank_0(transport, job.disks, job.folder, timeout_s=timeout_s)
    trace = gather_trace(worker, training.reporter.bubbles)
    training.reporter.close()
    if trace is None:
        return None
    if last_step < job.train.steps:
        return Stopped(step=last_step, checkpoint=latest(job.checkpoints))
    return _outcome(job, trace)


def _as_it_runs(job: Job, transport: Transport, checkpoint: Saved | None) -> Job:
    """Return the job with what is known since its ranks have begun: its position, its transport."""
    # Without GPUs, messages of `nccl` go over MPI.
    job = replace(job, description={**job.description, "transport": kind_of(transport).value})
    if checkpoint is None:
        return job
    order = job.description.get(ORDER, {})
    position = position_after(checkpoint.metadata, step=checkpoint.step, order=order)
    return replace(job, position=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """The steps of one rank, and its work between them."""

    worker: Worker
    outer: OuterLoop | None
    quorum: QuorumLoop | None
    watch: Watchdog
    saver: Saver
    reporter: "_Reporter"
    links: LinkReporter
    last_state: LastState

    def run(self, state: TrainState, *, first_step: int) -> int:
        """Train, and return the number of steps done: all of them, or fewer if asked to stop."""
        nonfinite = NonfiniteSteps()
        unfinished = self.last_state.unfinished
        if unfinished is not None:
            self._report_and_save(state, unfinished)
            if unfinished.is_stopped:
                return unfinished.step
        for step in range(first_step, self.worker.job.train.steps):
            before = state
            state, ended = self._step(state, step=step)
            nonfinite.check(self.worker.transport, before, state, step=step + 1)
            if ended.is_stopped:
                return step + 1
        return self.worker.job.train.steps

    def close(self) -> None:
        """End the threads and connections of the steps."""
        self.worker.close()
        if self.outer is not None:
            self.outer.close(timeout_s=self.worker.job.run.timeout_s)
        if self.quorum is not None:
            self.quorum.close()

    def _step(self, before: TrainState, *, step: int) -> tuple[TrainState, StepEnd]:
        """Train on the batch of a step, report and save."""
        self.watch.phase("read samples", step=step)
        begin_s = time.perf_counter()
        state, totals = self.worker.train_step(before, step=step)
        outer_bytes = None
        if self.outer is not None:
            state, end = self._outer_step(self.outer, state, totals, step=step)
            # All islands stop after the same step: where they meet, if any rank was asked to.
            totals = replace(totals, stops=0.0 if end is None else end.stops)
            outer_bytes = None if end is None else end.num_bytes
        if self.quorum is not None:
            self.watch.phase("outer step", step=step, limit_s=self.quorum.longest_s)
            state, outer_bytes = self.quorum.after_step(state, totals, done=step + 1)
        ended = StepEnd(
            step=step + 1,
            totals=totals,
            outer_bytes=outer_bytes,
            step_s=time.perf_counter() - begin_s,
            loss_scale=None if before.loss_scale is None else before.loss_scale.scale,
            skipped_before=before.skipped_steps,
            skipped_after=state.skipped_steps,
        )
        # Before anything else that may fail: from here on a survivor continues after this step.
        self.last_state.update(state, ended)
        self._report_and_save(state, ended)
        return state, ended

    def _outer_step(
        self, outer: OuterLoop, state: TrainState, totals: StepTotals, *, step: int
    ) -> tuple[TrainState, OuterEnd | None]:
        """Do what the outer loop does after an inner step."""
        self.watch.phase("outer step", step=step, waits_for=outer.exchange.other_islands)
        return outer.after_step(state, done=step + 1, stops=totals.stops)

    def _report_and_save(self, state: TrainState, ended: StepEnd) -> None:
        """Measure the held-out loss, report the step, start a checkpoint; each when it is due."""
        job, done = self.worker.job, ended.step
        is_last = done == job.train.steps
        eval_loss = None
        # The condition is equal on all ranks, as it has to be: evaluating is a collective.
        if job.train.evaluates_after(done, is_stopped=ended.is_stopped):
            eval_loss = self._eval_loss(state, done=done)
        self.watch.phase("report", step=done - 1)
        measured = self.links.measure(ended)
        # Of all islands: a part has a plan of its own.
        links = None if measured is None else link_report(measured, self.worker.whole)
        self.reporter.step(ended, eval_loss=eval_loss, links=links)
        if measured is not None:
            self.worker.interpreter.hooks.after_links(measured)
        ends = is_last or ended.is_stopped
        if ends:
            self.worker.interpreter.hooks.before_last_save()
        if ends or done % job.checkpoint.every == 0:
            self.watch.phase("save", step=done - 1, limit_s=job.save_timeout_s)
            saved = self._snapshot(state, done=done)
            is_first = self.worker.everyone.rank == 0
            self.saver.begin(with_metrics(saved, job) if is_first else saved)

    def _eval_loss(self, state: TrainState, *, done: int) -> float:
        if self.outer is None:
            return self.worker.eval_loss(state)
        return self.outer.eval_loss(state, done=done)

    def _snapshot(self, state: TrainState, *, done: int) -> Snapshot:
        if self.outer is None:
            return snapshot(self.worker, state, step=done)
        return outer_snapshot(self.outer, state, step=done)


def _saver(job: Job, transport: Transport, *, hooks: Hooks) -> Saver:
    """Return what saves checkpoints, on the shared folder or on the disks of the hosts."""
    common: Any = {
        "keep": job.checkpoint.keep,
        "timeout_s": job.save_timeout_s,
        "hooks": hooks,
    }
    give_up_after = job.checkpoint.give_up_after
    if job.has_own_checkpoints:
        assert job.disks is not None
        copies, common = copies_of(job.plan, job.disks), {**common, "folder": job.folder}
        apart = CommitByMessage(transport, copies, **common)
        return Saver(transport, **common, apart=apart, give_up_after=give_up_after)
    return Saver(transport, **common, folder=job.checkpoints, give_up_after=give_up_after)


def _restored(worker: Worker, saved: Saved | None) -> tuple[OuterLoop | None, TrainState, int]:
    """Return the outer loop, if there is one, the state to train from, and its number of steps."""
    job = worker.whole
    state = None if saved is None else met(saved, job.outer)
    if state is not None and state is not saved and worker.everyone.rank == 0:
        logger.warning(
            "`outer.islands` is %d, and was %d when step %d was saved: all start from the mean",
            job.outer.islands,
            saved_outer(state.metadata).islands,
            state.step,
        )
    if not job.outer.is_on:
        return None, *restore_state(worker, state)
    return start_outer(worker, state)


def _finish(saver: Saver) -> None:
    """Wait for the last checkpoint, without which the run has failed."""
    if (failure := saver.close()) is not None:
        raise RunError(
            f"cannot save the last checkpoint: {failure}; free some space, and resume from the "
            "newest one with --resume"
        )


def _warn_of_lost_feedback(job: Job, *, first_step: int) -> None:
    if job.comm.feeds_back:
        logger.warning(
            "`comm.gradients` is %s, and checkpoints do not contain its residuals: the run resumes "
            "after step %d with zero residuals, and not bit for bit",
            job.comm.gradients,
            first_step,
        )


def _outcome(job: Job, trace: Trace) -> Outcome:
    folder = job.folder
    picture = folder / PICTURE_FILE if job.run.pictures else None
    picture = write_trace(trace, path=folder / TRACE_FILE, picture=picture)
    return replace(outcome_in(folder, job.checkpoints), picture=picture)


def outcome_in(folder: Path, checkpoints: Folder) -> Outcome:
    """Return the files of a completed run in its folder, and its last checkpoint."""
    trace, picture = folder / TRACE_FILE, folder / PICTURE_FILE
    return Outcome(
        checkpoint=latest(checkpoints),
        metrics=folder / METRICS_FILE,
        trace=trace if trace.exists() else None,
        picture=picture if picture.exists() else None,
    )


class _Reporter:
    """Writes the metrics on rank 0, and does nothing on other ranks.

    `bubbles` keeps the bubbles of the last steps, those of the trace, by step.
    """

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
        self.bubbles: dict[int, float] = {}
        self._file = None
        if transport.rank == 0:
            self._file = MetricsFile(
                job.metrics_file,
                job.description,
                first_step=first_step,
                truth=str(job.truth(os.environ)),
                key=secrets.token_hex(4),  # not from the seed: two runs of one config differ
            )
            self._trackers = Trackers(job.run.trackers, _tracked(job, self._file, first_step))

    def step(self, ended: StepEnd, *, eval_loss: float | None, links: LinkReport | None) -> None:
        """Report a step that has ended."""
        if self._file is None:
            return
        metrics = ended.metrics(self._job, eval_loss=eval_loss, links=links)
        if metrics.step >= self._job.train.steps - self._job.trace.steps:
            self.bubbles[metrics.step] = metrics.bubble
        self._file.write(metrics)
        self._trackers.log(metrics)
        self._observe(metrics)

    def close(self) -> None:
        """Wait for the trackers to finish."""
        if self._file is not None:
            self._trackers.close()


def _tracked(job: Job, file: MetricsFile, first_step: int) -> TrackedRun:
    return TrackedRun(
        folder=job.folder,
        project=job.run.project,
        key=file.key,
        first_step=first_step,
        logged_step=file.logged_step,
        description=job.description,
    )
