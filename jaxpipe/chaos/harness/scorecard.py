"""The results of all trials: a table for people, and a CSV row for each trial."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from jaxpipe.chaos.harness.trial import Family, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The trials of a family; trial i has the seed `seed` + i."""

    family: Family
    seed: int
    trials: tuple[Trial, ...]

    @property
    def num_passed(self) -> int:
        """The number of trials that passed."""
        return sum(trial.passed for trial in self.trials)

    @property
    def has_passed(self) -> bool:
        """Whether all trials passed."""
        return self.num_passed == len(self.trials)

    @property
    def figures(self) -> str:
        """Median and maximum of the figures, by name.

        >>> from jaxpipe.chaos.harness.trial import Setup
        >>> family = Family(name="kill", does="", aim="", num_trials=1, num_trials_full=1,
        ...                 trials=lambda setup: iter(()))
        >>> trials = tuple(Trial(name="", passed=True, figures={"gone_s": s}) for s in (0.1, 0.4))
        >>> Score(family=family, seed=0, trials=trials).figures
        'gone_s 0.25, at most 0.4'
        """
        names = dict.fromkeys(name for trial in self.trials for name in trial.figures)
        return "; ".join(f"{name} {self._figure(name)}" for name in names)

    def _figure(self, name: str) -> str:
        values = [trial.figures[name] for trial in self.trials if name in trial.figures]
        return f"{median(values):.3g}, at most {max(values):.3g}"

    def repeats(self) -> tuple[str, ...]:
        """Return the commands that repeat the failed trials, one each."""
        return tuple(
            f"jaxpipe chaos {self.family.name} --seed {self.seed + number} --trials 1"
            for number, trial in enumerate(self.trials)
            if not trial.passed
        )


COLUMNS = ("family", "done", "aim", "passed", "figures: median and maximum")


def rows(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """Return the cells of the scorecard, without its head."""
    return [
        (
            score.family.name,
            score.family.does,
            score.family.aim,
            f"{score.num_passed} of {len(score.trials)}",
            score.figures,
        )
        for score in scores
    ]


def markdown(scores: Sequence[Score]) -> str:
    """Return the scorecard as a Markdown table, followed by the failed trials."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(scores)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    failed = [
        f"- {score.family.name}, {trial.name}: {trial.why} (`{command}`)"
        for score in scores
        for trial, command in zip(
            (each for each in score.trials if not each.passed), score.repeats(), strict=True
        )
    ]
    return "\n\n".join([table, *(["\n".join(failed)] if failed else [])]) + "\n"


def write_scorecard(scores: Sequence[Score], folder: Path) -> tuple[Path, ...]:
    """Write `scorecard.md` and `trials.csv`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    card, table = folder / "scorecard.md", folder / "trials.csv"
    card.write_text(markdown(scores))
    trials = [(score, trial) for score in scores for trial in score.trials]
    figures = list(dict.fromkeys(name for _, trial in trials for name in trial.figures))
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["family", "name", "passed", "why", *figures])
        for score, trial in trials:
            cells = [trial.figures.get(name, "") for name in figures]
            passed = "yes" if trial.passed else "no"
            writer.writerow([score.family.name, trial.name, passed, trial.why, *cells])
    return card, table
