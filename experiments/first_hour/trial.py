"""A mistake that needs more than a command, and how it should end."""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.first_hour.sandbox import Ended, Sandbox

_MOST_LINES = 8
"""One line, and before it warnings, such as one for each save that fails, or those of `mpirun`."""
_FAILED = (1, 2)
"""The exit codes of failures and of refusals."""
_PROGRESS = ("starting the ranks", "compiling the stages")
"""How lines of progress begin, which a slow machine has more of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mistake, what came of it in the first trial, the exit code, and words of the answer."""

    what: str
    before: str
    run: Callable[[Sandbox], Ended]
    code: int
    words: tuple[str, ...] = ()
    needs_root: bool = False


def holds(trial: Trial, ended: Ended) -> bool:
    """Return whether a trial ended as it should, with few lines and its words in what it printed.

    Words about a failure are among its errors; a run that is stopped on request has not failed.
    """
    text = ended.err if ended.code in _FAILED else ended.out + ended.err
    lines = [line for line in ended.err.splitlines() if not line.startswith(_PROGRESS)]
    is_short = len(lines) <= _MOST_LINES
    return ended.code == trial.code and is_short and all(word in text for word in trial.words)


def describe(trial: Trial, ended: Ended) -> str:
    """Say how a trial ended: by the last line of its errors, or the line with the wanted words."""
    if ended.code is None or ended.is_refusal:
        return str(ended)
    lines = (ended.err if ended.code in _FAILED else ended.out + ended.err).splitlines()
    wanted = [line for line in lines if trial.words and trial.words[0] in line]
    last = "done" if ended.code == 0 else lines[-1] if lines else "no word"
    return f"exit code {ended.code}: {' '.join((wanted or [last])[-1].split())}"
