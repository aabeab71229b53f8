"""One rank of a training run, from its transport to its last word."""

import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.cli.console import console
from jaxpipe.cli.report import StepReport, report_end
from jaxpipe.cli.told import stopping_when_told
from jaxpipe.comm import Transport
from jaxpipe.comm.abort import one_line
from jaxpipe.config import Config, cluster_from, job_from
from jaxpipe.plan import Plan, draw_plan
from jaxpipe.runtime.agreement import check_agreement
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.launch import seat
from jaxpipe.runtime.links import open_transport, say_links
from jaxpipe.runtime.resume import agree_on_checkpoint
from jaxpipe.runtime.train import Outcome, Stopped, train
from jaxpipe.runtime.watch import Cause, CauseKind, write_cause
from jaxpipe.runtime.watched import watch_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a run begins: with `resume`, at the checkpoint that rank 0 has `found`."""

    resume: bool
    found: Checkpoint | None


def run_rank(config: Config, plan: Plan, begin: Begin) -> int:
    """Train as one rank; an error ends all ranks, with this rank's words first."""
    cluster, is_seated = cluster_from(config), seat(os.environ) is not None
    transport = open_transport(config.run, plan, cluster, is_seated=is_seated)
    try:
        outcome = _train(config, plan, begin, transport)
    except BaseException as error:
        _write_traceback(Path(config.run.folder), transport.rank)
        transport.close(error=error)
        raise
    transport.close()
    _report(config, plan, outcome)
    return 0


def _train(
    config: Config, plan: Plan, begin: Begin, transport: Transport
) -> Outcome | Stopped | None:
    if transport.rank == 0:
        _introduce(config, plan)
    job = job_from(config, plan)
    watch = watch_over(job, rank=transport.rank, end=lambda cause: _end(job.folder, cause))
    description = {**job.description, "resume": begin.resume}
    del description["hardware"]  # hosts may differ in it
    timeout_s = job.run.startup_timeout_s
    report = StepReport(console, config.train, plan)
    try:
        check_agreement(transport, description, timeout_s=timeout_s)
        checkpoint = None
        if begin.resume:
            checkpoint = agree_on_checkpoint(transport, begin.found, timeout_s=timeout_s)
        with stopping_when_told(watch):
            return train(job, transport, checkpoint=checkpoint, observe=report, watch=watch)
    except BaseException as error:
        words = one_line(transport.rank, error).partition(": ")[2]
        write_cause(job.folder, watch.cause(CauseKind.ERROR, words))
        raise


def _introduce(config: Config, plan: Plan) -> None:
    cluster = cluster_from(config)
    if (line := say_links(config.run, cluster)) is not None:
        console.print(f"{line}\n", markup=False)
    console.print(draw_plan(plan, cluster), markup=False)
    console.print("\ncompiling the stages ...")


def _report(config: Config, plan: Plan, outcome: Outcome | Stopped | None) -> None:
    if isinstance(outcome, Stopped):
        console.print(
            f"\nstopped, as told, after step {outcome.step} of {config.train.steps}\n"
            f"checkpoint  {outcome.checkpoint}\n\nnext: the same command with --resume",
            markup=False,
        )
    elif outcome is not None:
        report_end(console, config, plan, outcome)


def _end(folder: Path, cause: Cause) -> None:
    """End this process, and with it the job: the main thread may never come back."""
    if write_cause(folder, cause):
        sys.stderr.write(f"jaxpipe: {cause}\n")
        sys.stderr.flush()
    os._exit(1)


def _write_traceback(folder: Path, rank: int) -> None:
    """Keep where the error came from; the terminal shows its one line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank}-error.txt").write_text(traceback.format_exc())
