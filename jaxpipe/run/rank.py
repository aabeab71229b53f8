"""One rank of a training run, from its transport to its last word."""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jaxpipe.comm import SurvivingTransport, Transport
from jaxpipe.config import Config, cluster_from, job_from, plan_from
from jaxpipe.errors import RankLostError, one_line
from jaxpipe.plan import Plan, draw_plan
from jaxpipe.run import within
from jaxpipe.run.console import console
from jaxpipe.run.on_hang import OnHang, end_job
from jaxpipe.run.report import StepReport, report_end
from jaxpipe.run.signals import stop_on_signal
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.checkpoint.agree import agree_on_checkpoint
from jaxpipe.runtime.config import Survival
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.open_transport import open_transport, say_links
from jaxpipe.runtime.process.mpirun import launched_rank
from jaxpipe.runtime.process.preflight import check_same_everywhere
from jaxpipe.runtime.recovery.last_state import LastState
from jaxpipe.runtime.recovery.shrink import Survivor
from jaxpipe.runtime.train import Outcome, Stopped, train
from jaxpipe.runtime.train_snapshot import Saved
from jaxpipe.runtime.watchdog import CauseKind, Watchdog, has_ended, mark_ended, write_cause
from jaxpipe.runtime.watchdog.of_job import start_watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a run begins: with `resume`, at the checkpoint that rank 0 has `found`."""

    resume: bool
    found: Checkpoint | None


@dataclass(slots=True, kw_only=True)
class _Place:
    """This process in its job: all of it changes where the job goes on without a lost rank.

    `devices` are the names of those of the ranks of `transport`. A rank that a smaller plan has no
    use for is `spare`.
    """

    config: Config
    transport: Transport
    devices: tuple[str, ...]
    watch: Watchdog | None = None
    standing: LastState = field(default_factory=LastState)
    is_spare: bool = False

    @property
    def survives(self) -> bool:
        """Whether the job goes on without lost ranks."""
        return self.config.run.survive is Survival.SHRINK

    def watched(self) -> Watchdog:
        """Return the watch that is told what this rank does."""
        assert self.watch is not None, "nothing is trained yet"
        return self.watch

    def start_watchdog(self, job: Job) -> Watchdog:
        """Let a new watch be told what this rank does; what the user wants stays."""
        end = partial(end_job, job.folder, survives=self.survives)
        if self.survives:
            end = OnHang(job.folder, end=end)
        before, self.watch = self.watch, start_watchdog(job, rank=self.transport.rank, end=end)
        if before is not None and before.stop_requested:
            self.watch.stop_requested = True
        return self.watch


def run_rank(config: Config, plan: Plan, begin: Begin) -> int:
    """Train as one rank; an error ends all ranks, with this rank's words first."""
    cluster, is_launched = cluster_from(config), launched_rank(os.environ) is not None
    transport = open_transport(config.run, plan, cluster, is_launched=is_launched)
    devices = tuple(cluster.devices[plan.device(r)].name for r in range(plan.num_ranks))
    place = _Place(config=config, transport=transport, devices=devices)
    try:
        if transport.rank == 0:
            _introduce(config, plan)
        job = job_from(config, plan)
        place.start_watchdog(job)
        with stop_on_signal(place.watched):
            outcome = _train_to_the_end(place, job, begin)
    except BaseException as error:
        _tell(place, error)
        place.transport.close(error=error)
        raise
    if not place.survives:
        transport.close()
    _report(config, plan, outcome)
    return 0


def _train_to_the_end(place: _Place, job: Job, begin: Begin) -> Outcome | Stopped | None:
    """Train as a rank of the whole plan, or of a smaller one after each loss of a rank."""
    survivor: Survivor | None = None
    while True:
        try:
            if survivor is None:
                outcome = _train_first(place, job, begin)
            else:
                outcome = _train_on(place, survivor)
            if place.survives and not place.is_spare:
                _leave(place, is_over=outcome is not None)
            return outcome
        except RankLostError:
            if not place.survives:
                raise
            assert isinstance(place.transport, SurvivingTransport), place.transport
            survivor = survivor or Survivor(place.transport, place.config.run, place.standing)


def _leave(place: _Place, *, is_over: bool) -> None:
    """Wait for the others, so that all go on if a rank is lost now; `is_over` is for rank 0 to say.

    From then on a rank that seems lost may just have left.
    """
    folder = Path(place.config.run.folder)
    if is_over:
        mark_ended(folder)
    try:
        place.transport.close()
    except RankLostError:
        if not has_ended(folder):
            raise


def _train_first(place: _Place, job: Job, begin: Begin) -> Outcome | Stopped | None:
    transport = place.transport
    description = {**job.description, "resume": begin.resume}
    del description["hardware"]  # hosts may differ in it
    timeout_s = job.run.startup_timeout_s
    check_same_everywhere(transport, description, timeout_s=timeout_s)
    checkpoint = None
    if begin.resume:
        checkpoint = agree_on_checkpoint(transport, begin.found, timeout_s=timeout_s)
    return _train(place, job, checkpoint)


def _train_on(place: _Place, survivor: Survivor) -> Outcome | Stopped | None:
    """Leave lost ranks behind, and train with a smaller plan."""
    resumed = survivor.recover(partial(_smaller_job, place))
    if resumed is None:
        place.is_spare = True
        return None
    place.transport = resumed.transport
    place.start_watchdog(resumed.job)
    if resumed.transport.rank == 0:
        console.print(f"\n{resumed}\n", markup=False)
        _introduce(place.config, resumed.job.plan)
    return _train(place, resumed.job, resumed.saved)


def _train(place: _Place, job: Job, saved: Saved | None) -> Outcome | Stopped | None:
    return train(
        job,
        place.transport,
        checkpoint=saved,
        observe=StepReport(console, job.train, job.plan),
        watch=place.watch,
        last_state=place.standing,
    )


def _smaller_job(place: _Place, survivors: Sequence[int]) -> Job | None:
    """Return the job for the ranks that are left, or for as many of them as a plan fits."""
    place.devices = tuple(place.devices[rank] for rank in survivors)
    found = within(place.config, num_ranks=len(survivors), devices=place.devices)
    return None if found is None else job_from(found, plan_from(found))


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


def _tell(place: _Place, error: BaseException) -> None:
    """Keep why the job ends, and where the error came from; the terminal shows its one line."""
    folder, rank = Path(place.config.run.folder), place.transport.rank
    if place.watch is not None:
        words = one_line(rank, error).partition(": ")[2]
        write_cause(folder, place.watch.cause(CauseKind.ERROR, words))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank}-error.txt").write_text(traceback.format_exc())
