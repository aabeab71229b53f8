"""One rank of a training run, from its transport to its last word."""

import os
import traceback
from pathlib import Path

from jaxpipe.cli.console import console
from jaxpipe.cli.report import StepReport, report_end
from jaxpipe.comm import Transport
from jaxpipe.config import Config, cluster_from, job_from
from jaxpipe.plan import Plan, draw_plan
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.launch import seat
from jaxpipe.runtime.links import open_transport, say_links
from jaxpipe.runtime.resume import agree_on_checkpoint
from jaxpipe.runtime.train import Outcome, train


def run_rank(config: Config, plan: Plan, found: Checkpoint | None, *, resume: bool) -> int:
    """Train as one rank; an error ends all ranks, with this rank's words first.

    With `resume` all go on from the checkpoint that rank 0 has `found`.
    """
    cluster, is_seated = cluster_from(config), seat(os.environ) is not None
    transport = open_transport(config.run, plan, cluster, is_seated=is_seated)
    try:
        outcome = _train(config, plan, transport, found, resume=resume)
    except BaseException as error:
        _write_traceback(Path(config.run.folder), transport.rank)
        transport.close(error=error)
        raise
    transport.close()
    if outcome is not None:
        report_end(console, config, plan, outcome)
    return 0


def _train(
    config: Config,
    plan: Plan,
    transport: Transport,
    found: Checkpoint | None,
    *,
    resume: bool,
) -> Outcome | None:
    if transport.rank == 0:
        cluster = cluster_from(config)
        if (line := say_links(config.run, cluster)) is not None:
            console.print(f"{line}\n", markup=False)
        console.print(draw_plan(plan, cluster), markup=False)
        console.print("\ncompiling the stages ...")
    job = job_from(config, plan)
    checkpoint = None
    if resume:
        checkpoint = agree_on_checkpoint(transport, found, timeout_s=job.run.startup_timeout_s)
    report = StepReport(console, config.train, plan)
    return train(job, transport, checkpoint=checkpoint, observe=report)


def _write_traceback(folder: Path, rank: int) -> None:
    """Keep where the error came from; the terminal shows its one line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank}-error.txt").write_text(traceback.format_exc())
