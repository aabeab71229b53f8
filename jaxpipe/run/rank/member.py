"""A rank as a member of its job: transport, plan, devices, watchdog; they change as it shrinks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from jaxpipe.comm import Transport
from jaxpipe.config import Config, cluster_from, job_from
from jaxpipe.plan import Plan
from jaxpipe.run.rank.on_hang import OnHang, end_job
from jaxpipe.run.rank.receive_plan import Start
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.data import dataset_folder
from jaxpipe.runtime.data.dataset.bring_dataset import bring_datasets
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.recovery.last_state import LastState
from jaxpipe.runtime.run_config import Survival
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.watchdog import Cause, Watchdog
from jaxpipe.runtime.watchdog.of_job import start_watchdog


@dataclass(slots=True, kw_only=True)
class Member:
    """This process as a member of its job: all but `start` changes when the job shrinks.

    `plan` is the one that the ranks of `transport` train last, `devices` are the names of theirs. A
    rank that a smaller plan has no use for is `spare`. `say` is called with how far this rank is.
    `disks` says which ranks share a run folder; None is one for all. `datasets` are the folders of
    the datasets on this host, by default those configured.
    """

    start: Start
    transport: Transport
    plan: Plan
    devices: tuple[str, ...]
    say: Callable[[Progress], None]
    watchdog: Watchdog | None = None
    last_state: LastState = field(default_factory=LastState)
    is_spare: bool = False
    disks: Disks | None = None
    datasets: tuple[Folder, ...] = ()

    @classmethod
    def of(cls, start: Start, transport: Transport, *, say: Callable[[Progress], None]) -> "Member":
        """Return the member that begins with the plan it has received."""
        assert start.resolved is not None, "the plan has been received"
        return cls(
            start=start,
            transport=transport,
            plan=start.resolved.plan,
            devices=start.resolved.devices,
            say=say,
            disks=None if start.place is None else start.place.disks,
        )

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.start.config

    @property
    def request(self) -> TrainRequest:
        """What the run was asked for."""
        return self.start.request

    @property
    def survives(self) -> bool:
        """Whether the job continues without lost ranks."""
        return self.config.run.survive is Survival.SHRINK

    def bring_datasets(self) -> None:
        """Bring the datasets to this host, if the hosts share no folder; all ranks call this."""
        config = self.config
        if self.disks is not None and not self.disks.is_shared:
            self.datasets = bring_datasets(
                self.transport,
                self.disks,
                tuple(map(dataset_folder, config.data.folders)),
                run_folder=Path(config.run.folder),
                timeout_s=config.run.startup_timeout_s,
            )

    def job(self, config: Config, plan: Plan, *, devices: Sequence[str] = ()) -> Job:
        """Return the job of a plan, with what is where on this host."""
        # Reports of links need it: they are made on rank 0, and one rank alone has no links.
        has_links = self.transport.rank == 0 and plan.num_ranks > 1
        cluster = cluster_from(config) if has_links else None
        job = job_from(config, plan, devices=devices, datasets=self.datasets, cluster=cluster)
        return replace(job, disks=self.disks)

    def current_watchdog(self) -> Watchdog:
        """Return the watchdog of this rank, which a recovery replaces."""
        assert self.watchdog is not None, "nothing is trained yet"
        return self.watchdog

    def request_stop(self) -> None:
        """Stop the run after the step under way."""
        self.current_watchdog().stop_requested = True

    def start_watchdog(self, job: Job) -> None:
        """Make the watchdog for a job; a stop that was requested of the last one stays."""
        end = partial(self._end_job, survives=self.survives)
        if self.survives:
            end = OnHang(job.folder, end=end)
        before, self.watchdog = (
            self.watchdog,
            start_watchdog(job, rank=self.transport.rank, end=end, transport=self.transport),
        )
        if before is not None and before.stop_requested:
            self.watchdog.stop_requested = True

    def _end_job(self, cause: Cause, *, survives: bool) -> None:
        """End the job, with the cause in every folder of the run."""
        end_job(self.current_watchdog().keep_cause, cause, survives=survives)
