"""Run the tests in environments with other versions of Python, JAX and the packages next to it.

    python -m experiments.versions.run [--cell NAME ...] [--other] [--subset]
        [--folder FOLDER] [--out FILE] [--only-packages]

By default all cells of `cells.toml` run all tests, one cell after the other. `--subset` runs the
tests that stand for the differences found so far. `--other` takes the first cell of the list
`other` whose Python is installed. The losses of a short training are compared with those of the
environment that runs this program, on the same text and machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from experiments.table import Row, markdown, read_csv, write_csv
from experiments.versions.cell import (
    ROOT,
    Cell,
    build,
    find_python,
    installed,
    read_cells,
    read_table,
    with_packages,
)

_RESULTS = Path(__file__).parent / "results"
_TWO = (
    *("--numprocesses", "2", "--dist", "loadscope", "--no-loadscope-reorder"),
    *("--max-worker-restart", "0"),
)
_MOST_ALONE = 10
"""More failed tests than these are not the machine's fault."""
_WHOLE_S, _SUBSET_S, _TRAINING_S = 3 * 3600.0, 1200.0, 900.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that the command line names, write the table, and return 1 if one failed."""
    given = _parser().parse_args(arguments)
    cells = read_cells()
    names = [other_cell(cells)] if given.other else given.cell or [*cells]
    if given.only_packages:
        for cell in (cells[name] for name in names):
            if python := find_python(cell.python):
                with_packages(cell, given.folder.resolve(), python, whole=not given.subset)
        return 0
    rows = [_run(cells[name], given.folder.resolve(), subset=given.subset) for name in names]
    rows = [row for row in rows if row]
    if given.out is not None:
        write_csv(_merged(given.out, rows), given.out)
    if rows:
        print(markdown(rows), flush=True)
    return 0 if all(row["verdict"] == "passed" for row in rows) else 1


def other_cell(cells: Mapping[str, Cell]) -> str:
    """Return the preferred cell, other than this environment, whose Python is installed."""
    for name in read_table()["other"]["cells"]:
        if find_python(cells[name].python):
            return name
        print(f"{name} is skipped: there is no Python {cells[name].python}", flush=True)
    raise SystemExit("no cell can run: no Python of the list `other` is installed")


def _run(cell: Cell, folder: Path, *, subset: bool) -> dict[str, str | int | float]:
    """Build a cell, run its tests, compare its losses; return its row, empty if it is skipped."""
    python = find_python(cell.python)
    if python is None:
        print(f"{cell.name} is skipped: there is no Python {cell.python}", flush=True)
        return {}
    begin_s = time.monotonic()
    bin_folder = build(cell, folder, python, whole=not subset)
    print(f"{cell.name}: built in {time.monotonic() - begin_s:.0f} s", flush=True)
    found = installed(bin_folder)
    wrong = {name: found[name] for name, pin in cell.pins.items() if found[name] != pin}
    assert not wrong, f"{cell.name} has {wrong}"
    counts = count_tests(bin_folder, folder / f"{cell.name}.xml", subset=subset)
    apart = _losses_apart(bin_folder, folder)
    within = apart <= read_table()["losses"]["within"]
    passed = counts["failed"] == 0 and counts["passed"] > 0 and within
    return {
        "cell": cell.name,
        **{name: found[name] for name in ("python", "jax", "flax", "optax", "numpy", "mpi4py")},
        "tests": "subset" if subset else "all",
        **counts,
        "losses_apart": apart,
        "seconds": round(time.monotonic() - begin_s),
        "date": datetime.now(UTC).date().isoformat(),
        "verdict": "passed" if passed else "failed",
    }


def count_tests(bin_folder: Path, report: Path, *, subset: bool) -> dict[str, int]:
    """Run the tests of an environment, and count their results.

    What fails runs once more, one test after the other: hours of tests on a shared machine always
    starve some deadline. `alone` is how many passed only then.
    """
    chosen = read_table()["subset"]["tests"] if subset else []
    timeout_s = _SUBSET_S if subset else _WHOLE_S
    counts = _counted(bin_folder, report, (*_TWO, *chosen), timeout_s=timeout_s)
    if not 0 < counts["failed"] <= _MOST_ALONE:
        return {**counts, "alone": 0}
    again = _counted(bin_folder, report, ("--last-failed",), timeout_s=timeout_s)
    assert again["passed"] + again["failed"] == counts["failed"], (counts, again)
    return {
        "passed": counts["passed"] + again["passed"],
        "failed": again["failed"],
        "skipped": counts["skipped"],
        "alone": again["passed"],
    }


def _counted(
    bin_folder: Path, report: Path, arguments: Sequence[str], *, timeout_s: float
) -> dict[str, int]:
    """Run pytest in an environment, and count the results of its report."""
    command = [bin_folder / "python", "-m", "pytest", f"--junitxml={report}", *arguments]
    report.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, env=_environment(bin_folder), check=False, timeout=timeout_s)
    suite = next(ElementTree.parse(report).iter("testsuite"))
    total, skipped, failed, errors = (
        int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors")
    )
    return {
        "passed": total - skipped - failed - errors,
        "failed": failed + errors,
        "skipped": skipped,
    }


def _losses_apart(bin_folder: Path, folder: Path) -> float:
    """Return how far the losses of an environment are from those of this one, at most."""
    here, there = (_losses(each, folder) for each in (Path(sys.executable).parent, bin_folder))
    assert len(here) == len(there) == read_table()["losses"]["steps"], (len(here), len(there))
    return max(abs(one - other) for one, other in zip(here, there, strict=True))


def _losses(bin_folder: Path, folder: Path) -> list[float]:
    """Train the quickstart for a few steps on a text of the repository, and return its losses."""
    run, data = folder / "run", folder / "data"
    for each in (run, data):
        shutil.rmtree(each, ignore_errors=True)
    steps = read_table()["losses"]["steps"]
    settings = (f"run.folder={run}", f"data.folder={data}", f"train.steps={steps}")
    settings += ("run.pictures=false", "sample.tokens=0", f"train.eval_every={steps}")
    train = ["train", "experiments/quickstart/two_region.toml", "--set", "train.eval_batches=1"]
    for setting in settings:
        train += ["--set", setting]
    for arguments in (["data", "prepare", "--out", str(data), "--source", "docs/guide"], train):
        subprocess.run(
            [bin_folder / "jaxpipe", *arguments],
            cwd=ROOT,
            env=_environment(bin_folder),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_TRAINING_S,
        )
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def _environment(bin_folder: Path) -> dict[str, str]:
    """Return the variables of a process in an environment: its programs are found first."""
    return os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}


def _merged(table: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a table with new ones in place of theirs, in the order of the cells."""
    known: dict[str, Row] = {}
    if table.exists():
        known = {row["cell"]: row for row in read_csv(table)}
    known |= {str(row["cell"]): row for row in rows}
    return [known[name] for name in read_cells() if name in known]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the tests with other versions.")
    parser.add_argument("--cell", action="append", choices=[*read_cells()], help="a cell")
    parser.add_argument("--other", action="store_true", help="the first of the list `other`")
    parser.add_argument("--subset", action="store_true", help="only the tests of the list `subset`")
    parser.add_argument(
        "--only-packages", action="store_true", help="install all but jaxpipe, and run nothing"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build/versions", help="where environments are built"
    )
    parser.add_argument("--out", type=Path, help=f"the table, such as {_RESULTS.name}/cells.csv")
    return parser


if __name__ == "__main__":
    sys.exit(main())
