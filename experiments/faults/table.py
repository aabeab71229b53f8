"""The table of the README: a row per file of trials in `results/`.

`python -m experiments.faults.table` prints it.
"""

from pathlib import Path
from statistics import median

from experiments.table import Row, markdown, numbers, read_csv

RESULTS = Path(__file__).with_name("results")
_NO_FIGURES = ("family", "name", "passed", "why")


def row(path: Path) -> Row:
    """Return the row of a file of trials, as `jaxpipe chaos --report` writes it."""
    trials = read_csv(path)
    num_passed = sum(trial["passed"] == "yes" for trial in trials)
    figures: list[str] = []
    for name in [key for key in trials[0] if key not in _NO_FIGURES]:
        values = numbers([trial for trial in trials if trial[name]], name)
        if values:
            figures.append(f"{name} {median(values):.3g}, {min(values):.3g} to {max(values):.3g}")
    return {
        "trials": path.stem,
        "passed": f"{num_passed} of {len(trials)}",
        "figures: median, minimum to maximum": "; ".join(figures),
    }


if __name__ == "__main__":
    print(markdown([row(path) for path in sorted(RESULTS.glob("*.csv"))]))
