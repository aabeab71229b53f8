"""One trial of chaos: what was broken on purpose, and whether the run came out as it must.

From what a trial does to what becomes of it: an error that jaxpipe raises is a trial failed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxpipe.errors import JaxpipeError, RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was broken, whether all was as it must be, and if not, why.

    `figures` are measurements by name and unit, such as `detection_s`.
    """

    name: str
    passed: bool
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where the trials of a family are done, how many, and from which seed what is random is drawn.

    `folder` is the family's own, and is empty at first; `dataset` is a folder of prepared data.
    Trial i of seed s is trial 0 of seed s + i, so that each can be repeated alone.
    """

    folder: Path
    dataset: Path
    num_trials: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One way to break a run: what is done, what must come out, and how often it is tried.

    `trials` does them one after the other and yields each result as it is known. `num_trials` are
    those of the subset, `num_trials_full` those of the whole.

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
    """Do a trial, which writes down its figures, and raises if it does not come out as it must.

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
    """Go on if it is as it must be.

    Raises:
        RunError: it is not; `otherwise` says so.
    """
    if not is_so:
        raise RunError(otherwise)
