"""Run over hosts, and restart: without those that are lost, and with those that join.

::

    attempt ──► done, stopped on request, refused                      stop
       ├──► stopped for hosts that join ─► plan with them ──► attempt
       ├──► stopped for a new plan, since links are slow ─► attempt with it
       └──► failed ─► which hosts answer? ─► plan for those ─► attempt, from the newest checkpoint

Each attempt reads the newest checkpoint. One that ends for a host that joins has saved it after its
last step, so no step is repeated.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from jaxpipe.config import load_config, place_of
from jaxpipe.errors import CheckpointError
from jaxpipe.run.drift.adopt import adopted_in
from jaxpipe.run.hosts.host_plan import HostPlan
from jaxpipe.run.hosts.joining import Joining
from jaxpipe.run.hosts.placed_job import answering
from jaxpipe.run.prepare_run import forget_last_end
from jaxpipe.run.supervise import EndKind
from jaxpipe.runtime.checkpoint import committed
from jaxpipe.runtime.process.mpirun import Wish
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.watchdog import Cause, CauseKind, has_ended, have_begun, read_cause

_ANSWERS_WITHIN_S = 8.0
_SECONDS_TO_END = 0.5
_SECONDS_TO_KILL = 2.0
"""After a rank has written why the run ends: its `mpirun` may wait for a host that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsRun:
    """A run over hosts: `here` is the name of this one, `beat` is called while ranks run.

    `arguments` returns the command line of a rank, for settings and whether it resumes.
    """

    config: Path
    settings: tuple[str, ...]
    max_restarts: int
    here: str
    arguments: Callable[[Sequence[str], bool], list[str]]
    beat: Callable[[], object]
    show: Callable[[str], object]


class End(Enum):
    """How an attempt has ended."""

    DONE = auto()
    STOPPED = auto()
    REFUSED = auto()
    JOINED = auto()
    ADOPTED = auto()
    FAILED = auto()


def end_of(
    code: int, folder: Path, *, steps: int, was_asked: bool, place: Folder | None = None
) -> End:
    """Return how an attempt has ended, by its exit code and by what its ranks have left.

    An `mpirun` that has lost a host ends with 0; so the mark of ranks that end in order decides.
    """
    if code == 0 and has_ended(folder):
        if (newest_step(place or folder) or 0) >= steps:
            return End.DONE
        if was_asked:
            return End.JOINED
        return End.STOPPED if adopted_in(folder) is None else End.ADOPTED
    kinds = {EndKind.STOPPED: End.STOPPED, EndKind.WRONG_INPUT: End.REFUSED}
    return kinds.get(EndKind.of(code), End.FAILED)


def newest_step(place: Folder) -> int | None:
    """Return the newest step that is committed on this disk, or in object storage; None if none is.

    Its shards may lie on other disks: ranks verify them.
    """
    try:
        return max(committed(place), default=None)
    except CheckpointError:  # object storage does not answer: ranks will say so
        return None


class HostsSupervisor:
    """Runs attempts until the run is done or hopeless."""

    def __init__(self, run: HostsRun, joining: Joining) -> None:
        self._run = run
        self._joining = joining
        config = load_config(run.config, run.settings, notice=None)
        self._folder, self._steps = Path(config.run.folder), config.train.steps
        self._place = place_of(config)
        self._failures = _Failures()
        self._known = list(joining.there)

    def supervise(self, plan: HostPlan, *, resume: bool) -> int:
        """Run and restart, beginning with this plan, and return the exit code.

        Raises:
            UserError: the configuration has become wrong, or its cluster.
        """
        from_step = newest_step(self._place) if resume else None
        attempt = _Attempt(number=1, plan=plan, from_step=from_step)
        while True:
            ended = self._run_attempt(attempt)
            self._joining.admit()
            found = self._following(ended)
            following = None
            if found is not None:
                next_step = newest_step(self._place)
                following = _Attempt(number=attempt.number + 1, plan=found, from_step=next_step)
            self._run.show(
                _report(ended, following, there=self._joining.there, folder=self._folder)
            )
            if following is None:
                return ended.exit_code
            attempt = following

    def _run_attempt(self, attempt: "_Attempt") -> "_Ended":
        """Run the ranks of a plan to their end."""
        forget_last_end(self._folder)
        watch = _Watch(self._run, self._joining, self._folder, attempt)
        code = self._joining.start.run_ranks(
            attempt.plan.hosts,
            self._run.arguments(attempt.plan.settings, attempt.from_step is not None),
            can_stop=lambda: have_begun(self._folder),
            poll=watch.poll,
        )
        was_asked = bool(self._joining.accepted)
        end = end_of(code, self._folder, steps=self._steps, was_asked=was_asked, place=self._place)
        cause = read_cause(self._folder) if end is End.FAILED else None
        return _Ended(attempt=attempt, code=code, end=end, cause=cause)

    def _following(self, ended: "_Ended") -> HostPlan | None:
        """Return the plan of the next attempt, None if there is none."""
        joining = self._joining
        if ended.end is End.ADOPTED and (adopted := adopted_in(self._folder)) is not None:
            joining.planner = joining.planner.with_adopted(adopted, hosts=joining.there)
        elif ended.end not in (End.FAILED, End.JOINED):
            return None
        self._known += [host for host in joining.there if host not in self._known]
        if ended.end is End.FAILED:
            self._failures.add(ended)
            if self._failures.is_hopeless(max_restarts=self._run.max_restarts):
                return None
            # All that ever took part: one that was lost before may be back.
            joining.there = list(
                answering(joining.start, self._known, here=self._run.here, most_s=_ANSWERS_WITHIN_S)
            )
        return joining.planner.plan_for(joining.there)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One start of the ranks of a plan, from a checkpoint, if there is one."""

    number: int
    plan: HostPlan
    from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """An attempt that has ended, with the exit code of its `mpirun`."""

    attempt: _Attempt
    code: int
    end: End
    cause: Cause | None

    @property
    def exit_code(self) -> int:
        """The exit code of the run, if this was its last attempt."""
        if self.code == 0 and self.end is not End.DONE:
            return 128 + signal.SIGTERM if self.end is End.STOPPED else 1
        return self.code


@dataclass(slots=True)
class _Failures:
    """The attempts that have failed."""

    seen: list[_Ended] = field(default_factory=list[_Ended])

    def add(self, ended: _Ended) -> None:
        """Count a failed attempt."""
        self.seen.append(ended)

    def is_hopeless(self, *, max_restarts: int) -> bool:
        """Return whether another attempt would fail as well."""
        if len(self.seen) > max_restarts:
            return True
        # An error that a rank raises twice from one checkpoint recurs.
        last = self.seen[-2:]
        are_errors = all(e.cause is not None and e.cause.kind is CauseKind.ERROR for e in last)
        return len(last) == 2 and are_errors and len({e.attempt.from_step for e in last}) == 1


def _report(
    ended: _Ended, following: _Attempt | None, *, there: Sequence[str], folder: Path
) -> str:
    """Return lines about an attempt that has ended, and about the next one."""
    adopted = adopted_in(folder)
    reason = ended.cause or ("no cause known" if ended.code else "`mpirun` has lost a host")
    how = {
        End.DONE: "is done",
        End.STOPPED: "stopped on request",
        End.REFUSED: "was refused: correct the input, a restart does not help",
        End.JOINED: "has stopped for hosts that join",
        End.ADOPTED: f"{adopted or ''}",
        End.FAILED: f"failed with exit code {ended.code}: {reason}",
    }[ended.end]
    lines = [f"attempt {ended.attempt.number} {how}"]
    gone = [host for host in ended.attempt.plan.used if host not in there]
    if ended.end is End.FAILED and gone:
        lines.append(f"hosts that do not answer: {', '.join(gone)}")
    if following is not None:
        step = following.from_step
        where = "the beginning" if step is None else f"step {step}"
        lines.append(f"attempt {following.number} continues from {where}: {following.plan}")
    elif ended.end in (End.FAILED, End.JOINED):
        lines.append("no further attempt")
    return "\n".join(lines)


class _Watch:
    """What the supervisor does ten times a second while the ranks of an attempt run."""

    def __init__(
        self,
        run: HostsRun,
        joining: Joining,
        folder: Path,
        attempt: _Attempt,
    ) -> None:
        self._run = run
        self._joining = joining
        self._folder = folder
        self._plan = attempt.plan
        self._first_step = (attempt.from_step or 0) + 1
        self._cause_s: float | None = None

    def poll(self) -> Wish | None:
        """Beat, look after hosts that join, and return what the ranks should do."""
        self._run.beat()
        if self._joining.waiting and have_begun(self._folder):
            self._joining.announce(self._plan, step=self._first_step)
        self._joining.poll(self._plan)
        if self._cause_s is None and read_cause(self._folder) is not None:
            self._cause_s = time.monotonic()
        if self._cause_s is not None:
            since_s = time.monotonic() - self._cause_s
            if since_s > _SECONDS_TO_KILL:
                return Wish.KILL
            return Wish.END if since_s > _SECONDS_TO_END else None
        can_stop = bool(self._joining.accepted) and have_begun(self._folder)
        return Wish.STOP if can_stop else None
