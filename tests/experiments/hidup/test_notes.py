"""Tables of the notes are those that the results give."""

from pathlib import Path

from experiments.hidup.divergence import shown
from experiments.hidup.emulated import summary
from experiments.table import read_csv

FOLDER = Path(__file__).parents[3] / "experiments" / "hidup"
NOTES = (FOLDER / "NOTES.md").read_text()
RESULTS = FOLDER / "results"


def test_the_emulated_bars_are_those_of_the_results() -> None:
    text = summary(read_csv(RESULTS / "emulated.csv"))
    assert text in NOTES
    assert text == (RESULTS / "emulated.md").read_text().strip()


def test_the_steps_of_the_divergence_are_those_of_the_results() -> None:
    assert shown(read_csv(RESULTS / "divergence.csv")) in NOTES


def test_the_pairs_in_a_wrong_order_are_those_of_the_results() -> None:
    pairs = (RESULTS / "reachable.md").read_text().strip().split("\n\n")[-1]
    assert pairs.startswith("| figure | condition | model | published | apart, s |")
    assert pairs in NOTES


def test_the_errors_without_a_part_are_those_of_the_results() -> None:
    parts = (RESULTS / "fit.md").read_text().strip().split("\n\n")
    assert next(part for part in parts if part.startswith("| left out")) in NOTES


def test_the_learned_rows_are_those_of_the_results() -> None:
    rows = (RESULTS / "learned.md").read_text().splitlines()
    shown_rows = [line for line in NOTES.splitlines() if "-switch-tiny | " in line]
    assert len(shown_rows) == 11
    assert set(shown_rows) <= set(rows)
