"""`jaxpipe chaos`: injects faults into tiny runs, and checks that they recover."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import tyro
from rich.table import Table

from jaxpipe.chaos.harness.scorecard import COLUMNS, Score, rows, write_scorecard
from jaxpipe.chaos.harness.trial import Family, Setup, Trial
from jaxpipe.run.folder.output_files import check_output_folder
from jaxpipe.run.terminal.console import console, print_table
from jaxpipe.run.terminal.progress import Progress, showing_progress


def chaos(
    families: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="FAMILY ...")]
    ] = (),
    *,
    full: bool = False,
    report: Path | None = None,
    seed: int = 0,
    trials: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
) -> int:
    """Kill, stop and damage runs on this machine, and check that they recover.

    It trains tiny models of its own. The exit code is 1 if a trial fails; its files are then kept.

    Args:
        families: fault families, by default all: kill, stop, calm, corrupt, save, term, start,
            orphan, folder, cut, shrink, survive, fuzz, host, join, slow, disk.
        full: the full number of trials, which takes hours; by default a few.
        report: a folder for `scorecard.md` and `trials.csv`.
        seed: seed of the first trial.
        trials: number of trials of each family.
    """
    # They import jax and psutil.
    from jaxpipe.chaos.families import families as families_named
    from jaxpipe.chaos.harness.tiny_run import write_dataset

    if report is not None:
        check_output_folder("--report", report, ("scorecard.md", "trials.csv"))
    chosen_families = families_named(families)
    folder = Path(mkdtemp(prefix="jaxpipe-chaos-"))
    dataset = write_dataset(folder / "data")
    scores: list[Score] = []
    for family in chosen_families:
        # Families with 0 trials by default are for a full run, or for `--trials`.
        num_trials = trials or (family.num_trials_full if full else family.num_trials)
        if num_trials:
            scores.append(Score(family=family, seed=seed, trials=()))
        for trial in _try(family, folder, dataset, num_trials=num_trials, seed=seed):
            scores[-1] = replace(scores[-1], trials=(*scores[-1].trials, trial))
            # After each trial: a full run takes hours, and may be ended.
            if report is not None:
                write_scorecard(scores, report)
    _show(scores)
    if all(score.has_passed for score in scores):
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    for command in (line for score in scores for line in score.repeats()):
        console.print(f"repeat  {command}", markup=False)
    console.print(f"\nfiles of the failed trials: {folder}", markup=False)
    return 1


def _try(
    family: Family, folder: Path, dataset: Path, *, num_trials: int, seed: int
) -> Iterator[Trial]:
    """Yield the trials of a family, with progress on the terminal."""
    if num_trials == 0:
        return
    trial_folder = folder / family.name
    trial_folder.mkdir()
    setup = Setup(folder=trial_folder, dataset=dataset, num_trials=num_trials, seed=seed)
    num_failed = 0
    with showing_progress(family.name) as display:
        for number, trial in enumerate(family.trials(setup), start=1):
            if not trial.passed:
                num_failed += 1
                console.print(f"{family.name}, {trial.name}: {trial.why}", markup=False)
            failed = f"{num_failed} failed" if num_failed else ""
            display.update(
                Progress(
                    what=family.name, done=number, total=num_trials, unit="trial", detail=failed
                )
            )
            yield trial


def _show(scores: list[Score]) -> None:
    table = Table(*COLUMNS, box=None)
    for row in rows(scores):
        table.add_row(*row)
    print_table(table)
