"""One attempt of a run, and how it ended.

What to do after an attempt has ended.

Starts a run, and starts it again, until it is done or there is no use in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from jaxpipe.config import load_config
from jaxpipe.errors import CheckpointError
from jaxpipe.run.smaller_plan import smaller
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause


class EndKind(Enum):
    """What the exit code of an attempt says."""

    DONE = auto()
    STOPPED = auto()
    WRONG_INPUT = auto()
    FAILED = auto()

    @classmethod
    def of(cls, code: int) -> "EndKind":
        """Return what an exit code says.

        >>> [EndKind.of(code).name for code in (0, 143, 2, 1, -9)]
        ['DONE', 'STOPPED', 'WRONG_INPUT', 'FAILED', 'FAILED']
        """
        kinds = {0: cls.DONE, 2: cls.WRONG_INPUT} | dict.fromkeys(STOP_EXIT_CODES, cls.STOPPED)
        return kinds.get(code, cls.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is started: with which changes of the configuration, and from which step, if any."""

    number: int
    settings: tuple[str, ...]
    from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: its exit code, why, and from which step the next one would go on."""

    attempt: Attempt
    code: int
    cause: Cause | None
    next_step: int | None

    @property
    def has_got_on(self) -> bool:
        """Whether there is a checkpoint that was not there before the attempt."""
        return self.next_step != self.attempt.from_step


class Decision(Enum):
    """What comes next."""

    STOP = auto()
    """It is over: done, told to stop, wrong from the beginning, or hopeless."""
    RESTART = auto()
    """Once more, with the same ranks."""
    SHRINK = auto()
    """Once more, with fewer ranks: what held a rank is gone."""


def decide(endings: tuple[Ending, ...], *, max_restarts: int) -> Decision:
    """Decide by all attempts so far, of which the last one has just ended.

    One failure may be chance. Two in a row from the same checkpoint are not: where ranks were lost
    (killed, stopped, hung) there is less to compute with than was thought; an error that a rank
    raised comes again with any number of ranks.
    """
    last = endings[-1]
    if EndKind.of(last.code) is not EndKind.FAILED or len(endings) > max_restarts:
        return Decision.STOP
    if len(endings) == 1 or last.has_got_on or endings[-2].has_got_on:
        return Decision.RESTART
    is_error = last.cause is not None and last.cause.kind is CauseKind.ERROR
    return Decision.STOP if is_error else Decision.SHRINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is kept going: a configuration and its changes, with so many restarts at most.

    `start` runs an attempt to its end and returns the exit code; `say` shows a line to the user.
    """

    config: Path
    settings: tuple[str, ...]
    max_restarts: int
    start: Callable[[Attempt], int]
    say: Callable[[str], object]

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return Path(load_config(self.config, self.settings).run.folder)


def supervise(run: Run, *, resume: bool) -> int:
    """Keep a run going, and return the exit code of its last attempt.

    Raises:
        ConfigError: the configuration is wrong.
    """
    endings: tuple[Ending, ...] = ()
    folder = run.folder
    from_step = newest_step(folder) if resume else None
    attempt = Attempt(number=1, settings=run.settings, from_step=from_step)
    while True:
        code = run.start(attempt)
        cause = None if EndKind.of(code) is not EndKind.FAILED else read_cause(folder)
        step = newest_step(folder)
        endings += (Ending(attempt=attempt, code=code, cause=cause, next_step=step),)
        decision = decide(endings, max_restarts=run.max_restarts)
        following = _following(run, endings[-1], decision)
        run.say(_tell(endings[-1], following))
        if following is None:
            return code
        attempt = following


def newest_step(folder: Path) -> int | None:
    """Return the step of the newest intact checkpoint, None where there is none."""
    try:
        return newest_valid(folder).step
    except CheckpointError:
        return None


def _following(run: Run, ending: Ending, decision: Decision) -> Attempt | None:
    if decision is Decision.STOP:
        return None
    settings: tuple[str, ...] | None = ending.attempt.settings
    if decision is Decision.SHRINK:
        settings = smaller(load_config(run.config, settings), settings)
    if settings is None:
        return None
    return Attempt(number=ending.attempt.number + 1, settings=settings, from_step=ending.next_step)


def _tell(ending: Ending, following: Attempt | None) -> str:
    number, cause = ending.attempt.number, ending.cause
    match EndKind.of(ending.code):
        case EndKind.DONE:
            return f"attempt {number} is done"
        case EndKind.STOPPED:
            return f"attempt {number} was told to stop; {_next_step(ending)}"
        case EndKind.WRONG_INPUT:
            return f"attempt {number} was refused; mend the input, no restart would"
        case EndKind.FAILED:
            reason = cause or "no cause known"
            why = f"attempt {number} failed with exit code {ending.code}: {reason}"
    if following is None:
        return f"{why}\nno further attempt; {_next_step(ending)}"
    beginning = "from the beginning" if following.from_step is None else ""
    where = beginning or f"from step {following.from_step}"
    added = [each for each in following.settings if each not in ending.attempt.settings]
    smaller_plan = f", with fewer ranks: {' '.join(added)}" if added else ""
    return f"{why}\nattempt {following.number} goes on {where}{smaller_plan}"


def _next_step(ending: Ending) -> str:
    if ending.next_step is None:
        return "there is no checkpoint yet"
    return f"the newest intact checkpoint is of step {ending.next_step}"
