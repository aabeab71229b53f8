"""The training of one rank, from its first step to the last, or to a stop; survivors shrink."""

import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from jaxpipe.comm import (
    BROADCAST_TAG,
    GATHER_TAG,
    SurvivingTransport,
    Transport,
    broadcast_bytes,
    first_text,
)
from jaxpipe.config import Config, check_place, cluster_from
from jaxpipe.errors import ConfigError, DeadlineError, RankLostError, one_line, optional_output
from jaxpipe.plan import Plan, ResolvedPlan, parse_resolved_plan, resolved_plan_text
from jaxpipe.run.drift.watch import drift_watch
from jaxpipe.run.folder.prepare_run import PLAN_FILE, introduce, write_resolved_plan
from jaxpipe.run.quorum.merge_line import merge_line
from jaxpipe.run.rank.member import Member
from jaxpipe.run.rank.signals import stop_on_signal
from jaxpipe.run.supervise.next_plan import next_plan, with_plan_file
from jaxpipe.run.terminal.console import console
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.rank_progress import ReportedHooks
from jaxpipe.run.terminal.report import StepReport, report_end, theory_of
from jaxpipe.runtime.checkpoint.resume import resumed_state
from jaxpipe.runtime.hooks import NO_HOOKS
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.process.preflight import check_same_everywhere
from jaxpipe.runtime.recovery.survivor import Smaller, Survivor
from jaxpipe.runtime.stage.compile import stage_compiler
from jaxpipe.runtime.train import Outcome, Stopped, train
from jaxpipe.runtime.train_snapshot import Saved
from jaxpipe.runtime.watchdog import CauseKind, has_ended, mark_ended
from jaxpipe.runtime.watchdog.stopped_ranks import stopped_now

logger = logging.getLogger(__name__)


def train_rank(member: Member) -> int:
    """Train as one rank, and return the exit code; an error ends all ranks.

    A rank that was asked to stop returns 0 if it was launched, since the others could be aborted
    for another code.

    Raises:
        JaxpipeError: the input is wrong, or the run has failed.
    """
    start, transport, plan = member.start, member.transport, member.plan
    try:
        if transport.rank == 0:
            console.print("\ncompiling the stages ...")
        member.bring_datasets()
        job = member.job(member.config, plan, devices=member.devices)
        member.start_watchdog(job)
        with (
            stop_on_signal(member.current_watchdog, is_launched=start.is_launched) as received,
            _explained_waits(member),
        ):
            outcome = _train_to_the_end(member, partial(_train_first, member, job))
        _mark_ended(member)
    except BaseException as error:
        # Before `close`, which ends the process.
        _keep_error(member, error)
        member.transport.close(error=error)
        raise
    if not member.survives:  # else `_leave` has closed the current one
        transport.close()
    with optional_output("the report of the run"):
        _report(member, plan, outcome)
    stops_alone = received and isinstance(outcome, Stopped) and not start.is_launched
    return 128 + received[0] if stops_alone else 0


@contextmanager
def _explained_waits(member: Member) -> Iterator[None]:
    """Add to the error of a wait in the block which ranks it waited for, and what they do.

    A rank that waits for one that is slow, stopped or on the other end of a link knows no more than
    that no message has come.
    """
    try:
        yield
    except DeadlineError as error:
        watch, folder = member.current_watchdog(), Path(member.config.run.folder)
        why = f"{error}"
        if explained := watch.explain_wait():
            why += f"; {explained}"
        if (cause := stopped_now(folder, member.plan.num_ranks, why=f"{error}")) is not None:
            watch.keep_cause(cause)
            why = cause.message
        raise DeadlineError(why) from error


def _train_to_the_end(
    member: Member, begin: Callable[[], Outcome | Stopped | None]
) -> Outcome | Stopped | None:
    """Train as a rank of the whole plan, or of a smaller one after each loss of a rank."""
    survivor: Survivor | None = None
    while True:
        try:
            outcome = begin() if survivor is None else _train_on(member, survivor)
            if member.survives and not member.is_spare:
                _leave(member, is_over=outcome is not None)
            return outcome
        except RankLostError:
            if not member.survives:
                raise
            assert isinstance(member.transport, SurvivingTransport), member.transport
            survivor = survivor or Survivor(member.transport, member.config.run, member.last_state)


def _leave(member: Member, *, is_over: bool) -> None:
    """Wait for the others, so that all can recover if a rank is lost now.

    Rank 0 alone knows that the run `is_over`. From then on a rank that seems lost may just have
    left.
    """
    folder, disks = Path(member.config.run.folder), member.disks
    if disks is not None and not disks.is_shared:  # the others cannot see the mark of rank 0
        word = b"over" if is_over else b""
        heard = broadcast_bytes(
            member.transport,
            word if member.transport.rank == 0 else None,
            root=0,
            tag=BROADCAST_TAG,
            timeout_s=member.config.run.timeout_s,
        )
        is_over = heard == b"over"
    if is_over:
        mark_ended(folder)
    try:
        member.transport.close()
    except RankLostError:
        if not has_ended(folder):
            raise


def _mark_ended(member: Member) -> None:
    """Mark on each disk that the run has ended in order.

    The exit code does not tell: an `mpirun` that has lost a host ends with 0 as well.
    """
    disks, rank = member.disks, member.transport.rank
    # Survivors have marked it before they left, and spare ranks do not know.
    if not member.survives and (rank == 0 if disks is None else disks.leads(rank)):
        with suppress(OSError):  # a folder that has become read-only is no reason to fail
            mark_ended(Path(member.config.run.folder))


def _train_first(member: Member, job: Job) -> Outcome | Stopped | None:
    """Train as a rank of the whole plan, once all ranks are known to agree."""
    start, transport, timeout_s = member.start, member.transport, job.run.startup_timeout_s
    resume, resolved = start.request.resume, start.resolved
    assert resolved is not None, "the plan has been received"
    facts = {**job.description, "resume": resume, "plan": resolved_plan_text(resolved)}
    del facts["hardware"]  # hosts may differ in it
    check_same_everywhere(transport, facts, timeout_s=timeout_s)
    _check_place(member.config, transport, timeout_s=timeout_s)
    state = None
    if resume:
        state = resumed_state(job, transport, start.found, timeout_s=timeout_s)
    return _train(member, job, state)


def _check_place(config: Config, transport: Transport, *, timeout_s: float) -> None:
    """Check that all ranks can write to the object storage of the run, if it has some.

    Raises:
        ConfigError: one cannot; all ranks raise it.
    """
    if config.checkpoint.folder is None:
        return
    problem = ""
    try:
        check_place(config)
    except ConfigError as error:
        problem = f"{error} (on {socket.gethostname()})"
    if problem := first_text(transport, problem, tag=GATHER_TAG, timeout_s=timeout_s):
        raise ConfigError(problem)


def _train_on(member: Member, survivor: Survivor) -> Outcome | Stopped | None:
    """Leave lost ranks behind, and train with a smaller plan."""
    resumed = survivor.recover(partial(_smaller_job, member))
    if resumed is None:
        member.is_spare = True
        return None
    member.transport, plan = resumed.transport, resumed.job.plan
    member.plan = plan
    member.devices = tuple(member.devices[number] for number in resumed.numbers)
    if member.disks is not None:  # without ranks for which the plan has no use
        member.disks = member.disks.among(resumed.numbers)
    job = replace(resumed.job, disks=member.disks)
    member.start_watchdog(job)
    if resumed.transport.rank == 0:
        cluster = cluster_from(member.config)  # others need no cluster file
        job = replace(job, cluster=cluster)
        write_resolved_plan(member.config, ResolvedPlan.of(plan, cluster))
        console.print(f"\n{resumed}\n", markup=False)
        introduce(member.config, plan, cluster)
        console.print("\ncompiling the stages ...")
    return _train(member, job, resumed.saved)


def _train(member: Member, job: Job, saved: Saved | None) -> Outcome | Stopped | None:
    report = StepReport(console, job.train, theory_of(member.config, job.plan), say=member.say)
    drift = drift_watch(
        job,
        member.config.plan,
        say=lambda line: console.print(f"\n{line}\n", markup=False),
        resume_line=member.request.resume_line,
        stop=member.request_stop if member.request.is_supervised else None,
    )

    def observe(metrics: StepMetrics) -> None:
        report(metrics)
        if drift is not None:
            drift.after_step(metrics)

    if member.transport.rank == 0:
        job = replace(job, line=merge_line(member.config, say=_print_line))
    try:
        return train(
            job,
            member.transport,
            checkpoint=saved,
            observe=observe,
            watch=member.watchdog,
            last_state=member.last_state,
            hooks=ReportedHooks(
                member.start.hooks,
                say=member.say,
                on_links=None if drift is None else drift.after_links,
            ),
            compiler=stage_compiler(os.environ, has_hooks=member.start.hooks is not NO_HOOKS),
        )
    finally:
        if drift is not None:
            drift.close()


def _print_line(line: str) -> None:
    console.print(line, markup=False)


def _smaller_job(member: Member, transport: Transport, survivors: Sequence[int]) -> Smaller | None:
    """Return the job for the surviving ranks, or for as many of them as a plan fits."""
    resolved = _agreed(member, transport, survivors)
    if resolved is None:
        return None
    # `survivors` are ranks of the last plan, not of the first one.
    left = [member.devices[rank] for rank in survivors]
    # The devices of the new ranks, in their order; those without a rank come last.
    used = [left.index(name) for name in resolved.devices]
    order = (*used, *(number for number in range(len(left)) if number not in set(used)))
    config = with_plan_file(member.config, Path(member.config.run.folder) / PLAN_FILE)
    job = member.job(config, resolved.plan, devices=resolved.devices)
    if member.disks is not None:
        job = replace(job, disks=member.disks.among([survivors[number] for number in order]))
    return Smaller(job=job, order=order)


def _agreed(member: Member, transport: Transport, survivors: Sequence[int]) -> ResolvedPlan | None:
    """Return the next plan, which the first survivor chooses.

    Hosts could compute its costs with different roundings, and choose differently.
    """
    text = ""
    if transport.rank == 0:
        cluster = cluster_from(member.config)
        devices = [device for rank in survivors for device in member.plan.group(rank)]
        following = next_plan(member.config, member.plan, devices, cluster=cluster)
        if following is not None:
            text = resolved_plan_text(ResolvedPlan.of(following.plan, cluster))
            if following.changes:
                changes = ", ".join(following.changes)
                console.print(f"\nchanged for the ranks that are left: {changes}", markup=False)
    word = broadcast_bytes(
        transport,
        text.encode() if transport.rank == 0 else None,
        root=0,
        tag=BROADCAST_TAG,
        timeout_s=member.config.run.recover_s,
    )
    return parse_resolved_plan(word.decode(), source="the next plan") if word else None


def _report(member: Member, plan: Plan, outcome: Outcome | Stopped | None) -> None:
    config = member.config
    if isinstance(outcome, Stopped):
        # Why it has stopped, and what follows, is its supervisor's to say.
        is_supervised = member.request.is_supervised
        stopped = "stopped" if is_supervised else "stopped on request"
        following = "" if is_supervised else f"\n\n{member.request.resume_line()}"
        console.print(
            f"\n{stopped} after step {outcome.step}/{config.train.steps}\n"
            f"checkpoint  {outcome.checkpoint}{following}",
            markup=False,
        )
    elif outcome is not None:
        member.say(Progress(what="sampling and drawing"))
        report_end(console, config, plan, outcome)


def _keep_error(member: Member, error: BaseException) -> None:
    """Keep why the job ends, and where the error came from; the terminal shows its one line."""
    folder, rank = Path(member.config.run.folder), member.transport.rank
    if member.watchdog is not None:
        message = one_line(rank, error).partition(": ")[2]
        member.watchdog.keep_cause(member.watchdog.cause(CauseKind.ERROR, message))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{rank}-error.txt").write_text(traceback.format_exc())
    except OSError as failure:
        # Not raised: it would take the place of the error that ends the job.
        logger.warning("cannot write the traceback to %s: %s", folder, failure)
