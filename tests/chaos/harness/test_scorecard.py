"""The scorecard says what was tried, what came of it, and how to try it again."""

import csv
from pathlib import Path

import pytest

from jaxpipe.chaos import Family, Trial
from jaxpipe.chaos.harness.scorecard import Score, markdown, write_scorecard


def score(*trials: Trial, name: str = "kill", seed: int = 7) -> Score:
    family = Family(
        name=name,
        does="kill -9",
        aim="all is well",
        num_trials=1,
        num_trials_full=9,
        trials=lambda _: iter(()),
    )
    return Score(family=family, seed=seed, trials=trials)


PASSED = Trial(name="rank 1", passed=True, figures={"gone_s": 0.125})
SLOW = Trial(name="rank 2", passed=True, figures={"gone_s": 0.375, "named": 1.0})
FAILED = Trial(name="rank 3", passed=False, why="it has gone, for good")


@pytest.mark.parametrize(
    ("trials", "cells"),
    [
        ((), "0 of 0 |  |"),
        ((PASSED,), "1 of 1 | gone_s 0.125, at most 0.125 |"),
        (
            (PASSED, FAILED, SLOW),
            "2 of 3 | gone_s 0.25, at most 0.375; named 1, at most 1 |",
        ),
    ],
)
def test_a_row_to_a_family(trials: tuple[Trial, ...], cells: str) -> None:
    rows = markdown([score(*trials)]).splitlines()
    assert rows[2] == f"| kill | kill -9 | all is well | {cells}"


def test_what_has_failed_is_said_with_the_command_that_repeats_it() -> None:
    card = markdown([score(PASSED, FAILED)])
    again = "jaxpipe chaos kill --seed 8 --trials 1"
    assert f"- kill, rank 3: it has gone, for good (`{again}`)" in card
    assert score(PASSED, FAILED).repeats() == (again,)
    assert score(PASSED).repeats() == ()
    assert score(PASSED).has_passed
    assert not score(PASSED, FAILED).has_passed


def test_files_with_a_row_to_a_trial(tmp_path: Path) -> None:
    scores = [score(PASSED, FAILED), score(SLOW, name="stop")]
    card, table = write_scorecard(scores, tmp_path / "report")
    assert card.read_text() == markdown(scores)
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["family", "name", "passed", "why", "gone_s", "named"],
        ["kill", "rank 1", "yes", "", "0.125", ""],
        ["kill", "rank 3", "no", "it has gone, for good", "", ""],
        ["stop", "rank 2", "yes", "", "0.375", "1.0"],
    ]
