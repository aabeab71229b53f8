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
from jaxpipe.runtime.watchdog import has_ended, have_begun, read_cause

_ANSWERS_WITHIN_S = 8.0
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
        watch = _Watch(self, folder, attempt)
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

    def look_round(self) -> None:
        """Ask all hosts that ever took part which of them are there: a lost one may be back."""
        joining = self.joining
        joining.there = list(
            answering(joining.start, joining.known, here=self.here, most_s=_ANSWERS_WITHIN_S)
        )

    def newest_step(self, place: Folder) -> int | None:
        """Return the step at which the next attempt would resume; None at the beginning."""
        return newest_step(place)


class _Watch:
    """What the supervisor does ten times a second while the ranks of an attempt run."""

    def __init__(self, site: HostsSite, folder: Path, attempt: Attempt) -> None:
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
        if self._cause_s is None and read_cause(self._folder) is not None:
            self._cause_s = time.monotonic()
        if self._cause_s is not None:
            since_s = time.monotonic() - self._cause_s
            if since_s > _SECONDS_TO_KILL:
                return Wish.KILL
            return Wish.END if since_s > _SECONDS_TO_END else None
        can_stop = bool(joining.accepted) and have_begun(self._folder)
        return Wish.STOP if can_stop else None
