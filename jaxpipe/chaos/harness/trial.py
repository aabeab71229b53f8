"""The loop of fault injection: the trials of a family, one after the other.

::

    Family ── one_by_one ─► a Case for each seed ─► it breaks something, and raises if what follows
                              │                     is wrong
                              └─► Trial: its name and figures; passed, or why not
"""

import random
import shutil
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


@dataclass(slots=True, kw_only=True)
class Case:
    """A trial that runs: its seed, its own folder, the dataset; it gives its `name` and `figures`.

    `reference` is what the family has prepared for all of them: the folder of an undisturbed run.
    """

    seed: int
    folder: Path
    dataset: Path
    reference: Path
    name: str = ""
    figures: dict[str, float] = field(default_factory=dict[str, float])

    def chance(self) -> random.Random:
        """Return the source of all that is random in this trial."""
        return random.Random(self.seed)

    def result(self, run: Callable[["Case"], object]) -> Trial:
        """Run the trial; a `JaxpipeError` makes it a failed one.

        >>> def run(case):
        ...     case.name, case.figures["gone_s"] = "a", 7.0
        ...     expect(case.figures["gone_s"] < 1, "it takes too long")
        >>> Case(seed=0, folder=Path(), dataset=Path(), reference=Path()).result(run)
        Trial(name='a', passed=False, why='it takes too long', figures={'gone_s': 7.0})
        """
        why = ""
        try:
            run(self)
        except JaxpipeError as error:
            why = " ".join(str(error).split())
        return Trial(name=self.name, passed=not why, why=why, figures=self.figures)


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


def one_by_one(
    run: Callable[[Case], object],
    *,
    prepare: Callable[[Setup], Path] | None = None,
    keeps_passed: bool = True,
) -> Callable[[Setup], Iterator[Trial]]:
    """Return the trials of a family: `run` has a case for each seed.

    `prepare` is called once, before the first. Without `keeps_passed`, the folder of a trial that
    has passed is removed.

    >>> def run(case):
    ...     case.name = f"number {case.seed}"
    ...     expect(case.seed < 4, "it is too large")
    >>> setup = Setup(folder=Path(), dataset=Path(), num_trials=2, seed=3)
    >>> [(trial.name, trial.why) for trial in one_by_one(run)(setup)]
    [('number 3', ''), ('number 4', 'it is too large')]
    """

    def trials(setup: Setup) -> Iterator[Trial]:
        reference = setup.folder if prepare is None else prepare(setup)
        for seed in range(setup.seed, setup.seed + setup.num_trials):
            folder = setup.folder / f"seed-{seed}"
            case = Case(seed=seed, folder=folder, dataset=setup.dataset, reference=reference)
            trial = case.result(run)
            if trial.passed and not keeps_passed:
                shutil.rmtree(folder)
            yield trial

    return trials


def expect(is_so: bool, otherwise: str) -> None:
    """Check a condition of a trial.

    Raises:
        RunError: it is false; the message is `otherwise`.
    """
    if not is_so:
        raise RunError(otherwise)
