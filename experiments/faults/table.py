"""The table of the README: what became of the trials in `results/`, a row to a file.

`python -m experiments.faults.table` prints it.
"""

import csv
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).with_name("results")
_WORDS = ("family", "name", "passed", "why")


def row(path: Path) -> str:
    """Return the row of a file of trials, as `jaxpipe chaos --report` writes it."""
    with path.open(newline="") as file:
        trials = list(csv.DictReader(file))
    num_passed = sum(trial["passed"] == "yes" for trial in trials)
    figures: list[str] = []
    for name in [key for key in trials[0] if key not in _WORDS]:
        values = [float(trial[name]) for trial in trials if trial[name]]
        if values:
            figures.append(f"{name} {median(values):.3g}, {min(values):.3g} to {max(values):.3g}")
    return f"| {path.stem} | {num_passed} of {len(trials)} | {'; '.join(figures)} |"


def table(paths: list[Path]) -> str:
    """Return the table of some files of trials."""
    head = ["| trials | passed | figures: median, and from least to most |", "| --- | --- | --- |"]
    return "\n".join([*head, *(row(path) for path in paths)])


if __name__ == "__main__":
    print(table(sorted(RESULTS.glob("*.csv"))))
