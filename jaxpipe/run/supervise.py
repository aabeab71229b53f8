"""Restart a run after failures, from its newest checkpoint, until it is done or hopeless.

::

    attempt ──► ended? ──► done, stopped on request, or the input is wrong    stop
                  ├──► stopped for a new plan ──► from that step, with it ──► attempt
                  └──► failed ──► from the newest intact checkpoint ──► attempt
                            ├──► the same rank, twice at the same step ──► fewer ranks, a new plan
                            └──► fewer ranks, after a new checkpoint ──► all ranks again
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from jaxpipe.config import Config, load_config, place_of
from jaxpipe.errors import CheckpointError, UserError
from jaxpipe.plan import read_resolved_plan
from jaxpipe.run.drift.adopt import ADOPTED_EXIT_CODE, adopted_in
from jaxpipe.run.prepare_run import PLAN_FILE
from jaxpipe.run.smaller_plan import smaller
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause


class EndKind(Enum):
    """How an attempt ended, by its exit code."""

    DONE = auto()
    STOPPED = auto()
    WRONG_INPUT = auto()
    FAILED = auto()
    ADOPTED = auto()
    """It has stopped for a new plan."""

    @classmethod
    def of(cls, code: int) -> "EndKind":
        """Return the kind of an exit code.

        >>> [EndKind.of(code).name for code in (0, 143, 2, 75, -9)]
        ['DONE', 'STOPPED', 'WRONG_INPUT', 'ADOPTED', 'FAILED']
        """
        kinds = {0: cls.DONE, 2: cls.WRONG_INPUT, ADOPTED_EXIT_CODE: cls.ADOPTED} | dict.fromkeys(
            STOP_EXIT_CODES, cls.STOPPED
        )
        return kinds.get(code, cls.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run: its settings, and the step of the checkpoint it resumes from, if any."""

    number: int
    settings: tuple[str, ...]
    from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: exit code, cause, and the step at which the next would resume."""

    attempt: Attempt
    code: int
    cause: Cause | None
    next_step: int | None

    @property
    def lost_rank(self) -> int | None:
        """The rank that the cause names, if any."""
        return None if self.cause is None else self.cause.rank

    @property
    def made_progress(self) -> bool:
        """Whether the attempt has left a new checkpoint."""
        return self.next_step != self.attempt.from_step


class Decision(Enum):
    """What follows an attempt."""

    STOP = auto()
    """The run is over: done, stopped on request, refused, or hopeless."""
    RESTART = auto()
    """Another attempt with the same ranks."""
    SHRINK = auto()
    """Another attempt with fewer ranks: a device seems to be gone."""
    GROW = auto()
    """Another attempt with all ranks: the device may have returned."""


def decide(endings: tuple[Ending, ...], *, max_restarts: int) -> Decision:
    """Return what follows these attempts, of which the last one has just ended.

    One failure may be chance; two in a row from the same checkpoint are not. If the same rank was
    lost both times (killed, stopped, hung), or no cause names one, the next attempt has fewer.
    Losses of different ranks are usual on spot machines, which come back. An error that a rank
    raised would recur with any number of ranks.

    When an attempt with fewer ranks fails after it has saved a checkpoint, the next one has all of
    them again; if that one fails before its first checkpoint, the ranks are fewer again.
    """
    last = endings[-1]
    if (
        EndKind.of(last.code) not in (EndKind.FAILED, EndKind.ADOPTED)
        or len(endings) > max_restarts
    ):
        return Decision.STOP
    if last.made_progress:
        return (
            Decision.GROW
            if last.attempt.settings != endings[0].attempt.settings
            else (Decision.RESTART)
        )
    if _has_grown(endings):
        return Decision.SHRINK
    if len(endings) == 1 or endings[-2].made_progress:
        return Decision.RESTART
    if last.cause is not None and last.cause.kind is CauseKind.ERROR:
        return Decision.STOP
    return Decision.SHRINK if _lost_the_same(endings[-2], last) else Decision.RESTART


def _has_grown(endings: tuple[Ending, ...]) -> bool:
    """Return whether the last attempt was the first one with all ranks after one with fewer."""
    first, *others = (ending.attempt.settings for ending in endings)
    return len(others) > 1 and others[-1] == first != others[-2]


def _lost_the_same(before: Ending, last: Ending) -> bool:
    """Return whether two attempts lost the same rank, or none that is known; a link is no rank."""
    if any(each.cause is not None and each.cause.kind is CauseKind.LINK for each in (before, last)):
        return False
    # The ranks of plans of different sizes are different devices.
    return before.attempt.settings == last.attempt.settings and before.lost_rank == last.lost_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run to supervise: a configuration, its settings, and the number of restarts at most.

    `start` runs an attempt to its end and returns the exit code; `show` prints a line.
    """

    config: Path
    settings: tuple[str, ...]
    max_restarts: int
    start: Callable[[Attempt], int]
    show: Callable[[str], object]

    @property
    def first_config(self) -> Config:
        """The configuration of the first attempt."""
        return load_config(self.config, self.settings, notice=None)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.first_config.run.folder)


def supervise(run: Run, *, resume: bool) -> int:
    """Run and restart, and return the exit code of the last attempt.

    Raises:
        ConfigError: the configuration is wrong.
    """
    endings: tuple[Ending, ...] = ()
    folder, place = run.folder, place_of(run.first_config)
    from_step = newest_step(place) if resume else None
    attempt = Attempt(number=1, settings=run.settings, from_step=from_step)
    while True:
        code = run.start(attempt)
        adopted = adopted_in(folder) if EndKind.of(code) is EndKind.ADOPTED else None
        if adopted is not None:
            # From here on, "all ranks" are those of the new plan; failures still count.
            settings = adopted.among(attempt.settings)
            run = replace(run, settings=settings, max_restarts=run.max_restarts - len(endings))
            endings, step = (), newest_step(place)
            run.show(
                f"attempt {attempt.number} {adopted}\n"
                f"attempt {attempt.number + 1} continues from step {step}"
            )
            attempt = Attempt(number=attempt.number + 1, settings=settings, from_step=step)
            continue
        cause = None if EndKind.of(code) is not EndKind.FAILED else read_cause(folder)
        step = newest_step(place)
        endings += (Ending(attempt=attempt, code=code, cause=cause, next_step=step),)
        decision = decide(endings, max_restarts=run.max_restarts)
        following = _following(run, endings, decision)
        run.show(_report(endings[-1], following))
        if following is None:
            return code
        attempt = following


def newest_step(place: Folder) -> int | None:
    """Return the step of the newest intact checkpoint, None where there is none."""
    try:
        return newest_valid(place).step
    except CheckpointError:
        return None


def _following(run: Run, endings: tuple[Ending, ...], decision: Decision) -> Attempt | None:
    ending = endings[-1]
    settings: tuple[str, ...] | None = ending.attempt.settings
    if decision is Decision.STOP:
        return None
    if decision is Decision.GROW:
        settings = run.settings
    elif decision is Decision.SHRINK and _has_grown(endings):
        settings = endings[-2].attempt.settings
    elif decision is Decision.SHRINK:
        # From the settings of the last attempt, which may have been made smaller before.
        config = load_config(run.config, settings, notice=None)
        settings = smaller(config, settings, devices=_remaining_devices(run.folder, ending))
    if settings is None:
        return None
    return Attempt(number=ending.attempt.number + 1, settings=settings, from_step=ending.next_step)


def _remaining_devices(folder: Path, ending: Ending) -> tuple[str, ...]:
    """Return the devices of an attempt without that of the lost rank; none if that is unknown."""
    try:
        devices = read_resolved_plan(folder / PLAN_FILE).devices
    except UserError:  # no attempt has come so far
        return ()
    lost = ending.lost_rank
    if lost is None or lost >= len(devices):
        return ()
    return tuple(name for rank, name in enumerate(devices) if rank != lost)


def _report(ending: Ending, following: Attempt | None) -> str:
    number, cause = ending.attempt.number, ending.cause
    match EndKind.of(ending.code):
        case EndKind.DONE:
            return f"attempt {number} is done"
        case EndKind.STOPPED:
            return f"attempt {number} stopped on request; {_next_step(ending)}"
        case EndKind.WRONG_INPUT:
            return f"attempt {number} was refused: correct the input, a restart does not help"
        case EndKind.FAILED | EndKind.ADOPTED:  # without a plan that can be read
            reason = cause or "no cause known"
            why = f"attempt {number} failed with exit code {ending.code}: {reason}"
    if following is None:
        return f"{why}\nno further attempt; {_next_step(ending)}"
    beginning = "from the beginning" if following.from_step is None else ""
    where = beginning or f"from step {following.from_step}"
    ranks = _difference(ending.attempt.settings, following.settings)
    return f"{why}\nattempt {following.number} continues {where}{ranks}"


def _difference(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Return how the ranks of an attempt differ from those of the one before it.

    >>> _difference((), ("plan.stages=1", "plan.replicas=1"))
    ', with fewer ranks: plan.stages=1 plan.replicas=1'
    >>> _difference(("plan.stages=1", "plan.replicas=1"), ())
    ', with all ranks again'
    """
    added = [each for each in after if each not in before]
    if added:
        return f", with fewer ranks: {' '.join(added)}"
    return "" if before == after else ", with all ranks again"


def _next_step(ending: Ending) -> str:
    if ending.next_step is None:
        return "there is no checkpoint yet"
    return f"the newest intact checkpoint is that of step {ending.next_step}"
