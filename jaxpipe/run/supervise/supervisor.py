"""The loop of a supervised run: an attempt, its end, what follows, the next attempt."""

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.config import load_config, place_of
from jaxpipe.errors import UserError
from jaxpipe.plan import read_resolved_plan
from jaxpipe.run.drift.new_plan import Adopted, adopted_in
from jaxpipe.run.folder.prepare_run import PLAN_FILE
from jaxpipe.run.supervise.ending import Attempt, Decision, Ending, EndKind, decide
from jaxpipe.run.supervise.planner import Planned, Planner
from jaxpipe.run.supervise.site import Site
from jaxpipe.runtime.run_config import Survival
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.watchdog import read_cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run to supervise: its plans, where it takes place, and the number of restarts at most.

    `show` prints a line.
    """

    planner: Planner
    site: Site
    max_restarts: int
    show: Callable[[str], object]


def supervise(run: Run, *, resume: bool) -> int:
    """Run and restart, and return the exit code of the last attempt.

    Raises:
        UserError: the configuration is wrong, or has become so.
    """
    supervisor = _Supervisor(run)
    attempt = supervisor.first(resume=resume)
    while True:
        ending = supervisor.run(attempt)
        following = supervisor.following(ending)
        run.show(_report(ending, following, run, adopted=supervisor.adopted))
        if following is None:
            return _exit_code(ending)
        attempt = following


class _Supervisor:
    """What a supervised run knows of its attempts so far.

    `failures` are those since the last change of its plan by choice, `adopted` is the new plan with
    which it continues.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        config = load_config(run.planner.config, run.planner.settings, notice=None)
        self._folder = Path(config.run.folder)
        self._place: Folder = place_of(config)
        self._shrinks_itself = config.run.survive is Survival.SHRINK
        self._restarts = run.max_restarts
        self._failures: tuple[Ending, ...] = ()
        self.adopted: Adopted | None = None

    def first(self, *, resume: bool) -> Attempt:
        """Return the first attempt."""
        step = self._run.site.newest_step(self._place) if resume else None
        return self._attempt(1, self._run.planner.configured(), step)

    def run(self, attempt: Attempt) -> Ending:
        """Run an attempt to its end."""
        code, kind = self._run.site.run(attempt)
        self.adopted = adopted_in(self._folder) if kind is EndKind.ADOPTED else None
        if kind is EndKind.ADOPTED and self.adopted is None:
            kind = EndKind.FAILED
        return Ending(
            attempt=attempt,
            code=code,
            kind=kind,
            cause=read_cause(self._folder) if kind is EndKind.FAILED else None,
            next_step=self._run.site.newest_step(self._place),
        )

    def following(self, ending: Ending) -> Attempt | None:
        """Return the next attempt, None if there is none."""
        planner, site = self._run.planner, self._run.site
        if ending.kind is EndKind.FAILED:
            planned = self._after_failure(ending)
        elif ending.kind in (EndKind.ADOPTED, EndKind.JOINED):
            if self.adopted is not None:
                planner.adopt(self.adopted, hosts=site.hosts)
            # From here on "all devices" are those of the new plan; failures still count.
            self._restarts -= len(self._failures)
            self._failures = ()
            planned = planner.plan_for(site.hosts)
        else:
            planned = None
        if planned is None:
            return None
        return self._attempt(ending.attempt.number + 1, planned, ending.next_step)

    def _after_failure(self, ending: Ending) -> Planned | None:
        site = self._run.site
        self._failures += (ending,)
        decision = decide(self._failures, max_restarts=self._restarts)
        if decision is Decision.STOP:
            return None
        before = site.hosts
        site.look_round()
        left_out = frozenset[str]()
        # A host that is gone explains the failure: no other device is to blame.
        if before is None or set(before) == set(site.hosts or ()):
            left_out = self._left_out(decision)
        return self._run.planner.plan_for(site.hosts, left_out=left_out)

    def _left_out(self, decision: Decision) -> frozenset[str]:
        """Return the devices without a rank in the next attempt."""
        last = self._failures[-1].attempt.planned
        match decision:
            case Decision.LEAVE_OUT:
                return last.left_out | self._lost_devices(self._failures[-1])
            case Decision.LEAVE_OUT_AGAIN:
                return self._failures[-2].attempt.planned.left_out
            case Decision.BRING_BACK:
                return frozenset()
            case _:
                return last.left_out

    def _lost_devices(self, ending: Ending) -> frozenset[str]:
        """Return the devices of the lost rank; those of the last rank if that is unknown."""
        groups, rank = ending.attempt.planned.groups, ending.lost_rank
        if self._shrinks_itself:  # the ranks of an attempt may have had smaller plans since
            with suppress(UserError):  # no attempt has come so far
                groups = read_resolved_plan(self._folder / PLAN_FILE).groups
        return frozenset(groups[-1 if rank is None or rank >= len(groups) else rank])

    def _attempt(self, number: int, planned: Planned, from_step: int | None) -> Attempt:
        file = self._folder / f"plan-{number}.toml"
        return Attempt(
            number=number,
            planned=planned,
            settings=planned.settings_with(file),
            from_step=from_step,
            plan_file=None if planned.following is None else file,
        )


def _exit_code(ending: Ending) -> int:
    """Return the exit code of a run whose last attempt this was."""
    if ending.code == 0 and ending.kind is not EndKind.DONE:
        return 128 + signal.SIGTERM if ending.kind is EndKind.STOPPED else 1
    return ending.code


def _report(ending: Ending, following: Attempt | None, run: Run, *, adopted: Adopted | None) -> str:
    """Return lines about an attempt that has ended, and about the next one."""
    number, newest = ending.attempt.number, _newest(ending)
    if ending.kind is EndKind.STOPPED:
        return f"attempt {number} stopped on request; {newest}"
    how = {
        EndKind.DONE: "is done",
        EndKind.WRONG_INPUT: "was refused: correct the input, a restart does not help",
        EndKind.ADOPTED: f"{adopted}",
        EndKind.JOINED: "has stopped for hosts that join",
        EndKind.FAILED: f"failed with exit code {ending.code}: {_reason(ending)}",
    }[ending.kind]
    lines = [f"attempt {number} {how}"]
    hosts = run.site.hosts
    if ending.kind is EndKind.FAILED and hosts is not None:
        gone = [host for host in ending.attempt.planned.used if host not in hosts]
        lines += [f"hosts that do not answer: {', '.join(gone)}"] if gone else []
    if following is not None:
        step = following.from_step
        where = "the beginning" if step is None else f"step {step}"
        ranks = _difference(ending.attempt.planned, following.planned)
        lines.append(f"attempt {following.number} continues from {where}{ranks}")
    elif ending.kind not in (EndKind.DONE, EndKind.WRONG_INPUT):
        lines.append(f"no further attempt; {newest}")
    return "\n".join(lines)


def _reason(ending: Ending) -> str:
    if ending.cause is not None:
        return f"{ending.cause}"
    return "no cause known" if ending.code else "`mpirun` has lost a host"


def _difference(before: Planned, after: Planned) -> str:
    """Return how the plan of an attempt differs from that of the one before it."""
    if after.left_out - before.left_out:
        return f", with fewer ranks: {after}"
    if before.left_out and not after.left_out and after.following is None:
        return ", with all ranks again"
    is_same = (before.groups, before.shape) == (after.groups, after.shape)
    return "" if is_same else f": {after}"


def _newest(ending: Ending) -> str:
    if ending.next_step is None:
        return "there is no checkpoint yet"
    return f"the newest checkpoint is that of step {ending.next_step}"
