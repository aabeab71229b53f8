"""Run a trial of fault injection; a `JaxpipeError` makes it a failed `Trial`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxpipe.errors import JaxpipeError, RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a trial: its fault, whether it passed, and if not, why.

    `figures` are measurements by name and unit, such as `detection_s`.
    """

    name: str
    passed: bool
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The folder of the trials of a family, their number, and their first seed.

    `folder` belongs to the family, and is empty at first; `dataset` is a folder of prepared data.
    Trial i of seed s is trial 0 of seed s + i, so that each can be repeated alone.
    """

    folder: Path
    dataset: Path
    num_trials: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of fault: what is done, what is required, and the number of trials.

    `trials` runs them in turn and yields each result. `num_trials` is the default number,
    `num_trials_full` that of a full run.

    >>> def none(setup: Setup) -> Iterator[Trial]:
    ...     yield from ()
    >>> family = Family(name="kill", does="kill -9 of a rank", aim="weights bitwise equal",
    ...                 num_trials=4, num_trials_full=100, trials=none)
    >>> list(family.trials(Setup(folder=Path(), dataset=Path(), num_trials=4, seed=0)))
    []
    """

    name: str
    does: str
    aim: str
    num_trials: int
    num_trials_full: int
    trials: Callable[[Setup], Iterator[Trial]]


def tried(name: str, work: Callable[[dict[str, float]], object]) -> Trial:
    """Run a trial, which records its figures, and raises if it fails.

    >>> def work(figures):
    ...     figures["gone_s"] = 7.0
    ...     expect(figures["gone_s"] < 1, "it takes too long")
    >>> tried("a", work)
    Trial(name='a', passed=False, why='it takes too long', figures={'gone_s': 7.0})
    """
    figures: dict[str, float] = {}
    try:
        work(figures)
    except JaxpipeError as error:
        why = " ".join(str(error).split())
        return Trial(name=name, passed=False, why=why, figures=figures)
    return Trial(name=name, passed=True, figures=figures)


def expect(is_so: bool, otherwise: str) -> None:
    """Check a condition of a trial.

    Raises:
        RunError: it is false; the message is `otherwise`.
    """
    if not is_so:
        raise RunError(otherwise)
