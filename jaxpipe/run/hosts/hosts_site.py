"""The attempts of a run over hosts: ranks that `mpirun` starts over ssh, and hosts that join.

An `mpirun` that has lost a host may end with 0, or not at all; so what ranks leave in the folder of
the run decides how an attempt has ended. One that ends for a host that joins has saved a checkpoint
after its last step, so no step is repeated.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.config import load_config, place_of
from jaxpipe.errors import CheckpointError
from jaxpipe.run.drift.new_plan import adopted_in
from jaxpipe.run.folder.prepare_run import forget_last_end
from jaxpipe.run.hosts.joining import Joining
from jaxpipe.run.hosts.placed_job import answering
from jaxpipe.run.supervise.ending import Attempt, EndKind
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.runtime.checkpoint import committed
from jaxpipe.runtime.process.mpirun import Wish
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.watchdog import (
    Cause,
    CauseKind,
    has_ended,
    have_begun,
    read_cause,
    write_cause,
)
from jaxpipe.runtime.watchdog.rank_start import has_started
from jaxpipe.topo.route import routes_to

_SECONDS_TO_JOIN_MPI = 60.0
"""From the start of `mpirun` until all ranks can talk, apart from their compilation."""
_SECONDS_TO_END = 0.5
_SECONDS_TO_KILL = 2.0
"""After a rank has written why the run ends: its `mpirun` may wait for a host that is gone."""


def newest_step(place: Folder) -> int | None:
    """Return the newest step that is committed on this disk, or in object storage; None if none is.

    Its shards may lie on other disks: ranks verify them.
    """
    try:
        return max(committed(place), default=None)
    except CheckpointError:  # object storage does not answer: ranks will say so
        return None


def end_of(
    code: int, folder: Path, *, steps: int, was_asked: bool, place: Folder | None = None
) -> EndKind:
    """Return how an attempt has ended, by its exit code and by what its ranks have left.

    `was_asked` says whether it was asked to stop for hosts that join.
    """
    if code != 0:
        kind = EndKind.of(code)
        return EndKind.FAILED if kind is EndKind.ADOPTED else kind
    if not has_ended(folder):
        return EndKind.FAILED
    if (newest_step(place or folder) or 0) >= steps:
        return EndKind.DONE
    if was_asked:
        return EndKind.JOINED
    return EndKind.STOPPED if adopted_in(folder) is None else EndKind.ADOPTED


@dataclass(slots=True)
class HostsSite:
    """The hosts that are there, and those that join.

    `here` is the name of this one, `beat` is called while ranks run. `request` is that of the
    ranks, but for the settings of an attempt, and whether it resumes.
    """

    joining: Joining
    request: TrainRequest
    here: str
    beat: Callable[[], object]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are there."""
        return tuple(self.joining.there)

    def run(self, attempt: Attempt) -> tuple[int, EndKind]:
        """Run an attempt to its end, and return its exit code, and how it ended."""
        config = load_config(self.request.config, self.request.settings, notice=None)
        folder = Path(config.run.folder)
        forget_last_end(folder)
        if attempt.number == 1 and (silent := self._silent(attempt.planned.used)):
            write_cause(folder, Cause(kind=CauseKind.KILLED, message=silent))
            return 1, EndKind.FAILED
        watch = _Watch(
            self,
            folder,
            attempt,
            begin_within_s=config.run.startup_timeout_s + _SECONDS_TO_JOIN_MPI,
        )
        code = self.joining.start.run_ranks(
            attempt.planned.hosts,
            replace(
                self.request,
                settings=attempt.settings,
                resume=attempt.from_step is not None,
                plan_bytes=0 if attempt.plan_file is None else attempt.plan_file.stat().st_size,
            ),
            can_stop=lambda: have_begun(folder),
            poll=watch.poll,
            plan_file=attempt.plan_file,
        )
        end = end_of(
            code,
            folder,
            steps=config.train.steps,
            was_asked=bool(self.joining.accepted),
            place=place_of(config),
        )
        self.joining.admit()
        return code, end

    def _silent(self, hosts: tuple[str, ...]) -> str:
        """Return which of the hosts do not answer; "" if all of them do.

        Asked before the first attempt: an `mpirun` waits for an ssh that never answers. Later ones
        follow `look_round`.
        """
        alive = answering(self.joining.start, hosts, here=self.here, most_s=self.joining.answer_s)
        gone = [host for host in hosts if host not in alive]
        if not gone:
            return ""
        return (
            f"`mpirun` starts no process over ssh within {self.joining.answer_s:g} s on "
            f"{', '.join(gone)}; try `ssh {gone[0]} true` here, which must neither ask nor wait"
        )

    def look_round(self) -> None:
        """Ask all hosts that ever took part which of them are there: a lost one may be back."""
        joining = self.joining
        joining.there = list(
            answering(joining.start, joining.known, here=self.here, most_s=self.joining.answer_s)
        )

    def newest_step(self, place: Folder) -> int | None:
        """Return the step at which the next attempt would resume; None at the beginning."""
        return newest_step(place)


class _Watch:
    """What the supervisor does ten times a second while the ranks of an attempt run."""

    def __init__(
        self, site: HostsSite, folder: Path, attempt: Attempt, *, begin_within_s: float
    ) -> None:
        self._begin_within_s = begin_within_s
        self._since_s = time.monotonic()
        self._site = site
        self._folder = folder
        self._planned = attempt.planned
        self._first_step = (attempt.from_step or 0) + 1
        self._cause_s: float | None = None

    def poll(self) -> Wish | None:
        """Beat, look after hosts that join, and return what the ranks should do."""
        self._site.beat()
        joining = self._site.joining
        if joining.waiting and have_begun(self._folder):
            joining.announce(self._planned, step=self._first_step)
        joining.poll(self._planned)
        if self._is_overdue():
            self._write_not_begun()
        if self._cause_s is None and read_cause(self._folder) is not None:
            self._cause_s = time.monotonic()
        if self._cause_s is not None:
            since_s = time.monotonic() - self._cause_s
            if since_s > _SECONDS_TO_KILL:
                return Wish.KILL
            return Wish.END if since_s > _SECONDS_TO_END else None
        can_stop = bool(joining.accepted) and have_begun(self._folder)
        return Wish.STOP if can_stop else None

    def _is_overdue(self) -> bool:
        elapsed_s = time.monotonic() - self._since_s
        is_late = elapsed_s > self._begin_within_s and self._cause_s is None
        return is_late and not have_begun(self._folder) and not has_started(self._folder)

    def _write_not_begun(self) -> None:
        """Write that MPI has not started: `mpirun` waits for its ranks without end."""
        here = self._site.here
        routes = routes_to(host for host in self._planned.used if host != here)
        ways = "; ".join(str(route) if route else f"{host}: none" for host, route in routes.items())
        message = (
            f"no rank has begun within {self._begin_within_s:g} s (`run.startup_timeout_s` and "
            f"{_SECONDS_TO_JOIN_MPI:g} s for MPI); the ways from {here} are {ways or 'none'}; if "
            "MPI takes others, such as those of docker0, set `run.interface`"
        )
        write_cause(self._folder, Cause(kind=CauseKind.HANG, message=message))
