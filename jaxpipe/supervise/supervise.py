"""Starts a run, and starts it again, until it is done or there is no use in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.config import load_config
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.watch import read_cause
from jaxpipe.supervise.attempt import Attempt, Ending, EndKind
from jaxpipe.supervise.decide import Decision, decide
from jaxpipe.supervise.smaller import smaller


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
        case EndKind.TOLD_TO_STOP:
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
