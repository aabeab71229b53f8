"""The cells are in the ranges of the package, and `make venv` installs one of them."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.version import Version

from experiments.table import read_csv
from experiments.versions import run
from experiments.versions.cell import ROOT, Cell, find_python, read_cells, read_table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
TABLE = ROOT / "experiments/versions/results/cells.csv"


def pinned_for(python: str) -> dict[str, str]:
    """Return the versions that `constraints.txt` pins for a minor version of Python."""
    lines = map(str.strip, (ROOT / "constraints.txt").read_text().splitlines())
    found = {}
    for pin, _, marker in (line.partition(";") for line in lines):
        if not marker or Marker(marker).evaluate({"python_version": python}):
            name, _, version = pin.strip().partition("==")
            assert name not in found, name
            found[name] = version
    return found


@pytest.mark.parametrize("cell", read_cells().values(), ids=lambda cell: cell.name)
def test_a_cell_is_in_the_ranges_of_the_package(cell: Cell):
    for name in ("jax", "flax", "optax", "numpy", "mpi4py"):
        assert Version(cell.pins[name]) in RANGES[name], name
    assert f"Programming Language :: Python :: {cell.python}" in PROJECT["classifiers"]


@pytest.mark.parametrize(
    ("name", "python"),
    [("py311-jax0102", "3.11"), ("py313-newest", "3.13"), ("py314-newest", "3.14")],
)
def test_pinned_versions_have_a_cell(name: str, python: str):
    cell, pinned = read_cells()[name], pinned_for(python)
    assert cell.python == python
    assert {each: pinned[each] for each in cell.pins} == cell.pins


def test_the_oldest_cell_has_the_lower_bounds():
    cell = read_cells()["py311-oldest"]
    bounds = {
        name: next(each.version for each in RANGES[name] if each.operator == ">=")
        for name in ("jax", "flax", "optax", "numpy", "mpi4py")
    }
    assert {name: Version(bound) for name, bound in bounds.items()} == {
        name: Version(cell.pins[name]) for name in bounds
    }
    assert PROJECT["requires-python"] == f">={cell.python}"


def test_every_python_that_is_claimed_has_a_cell():
    claimed = {
        each.rpartition(" ")[2] for each in PROJECT["classifiers"] if " :: Python :: 3." in each
    }
    assert claimed == {cell.python for cell in read_cells().values()}


def test_the_subset_names_tests():
    tests = read_table()["subset"]["tests"]
    assert tests
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_this_python_is_found_and_an_unknown_one_is_not():
    own = "{}.{}".format(*sys.version_info)
    assert find_python(own) is not None
    assert find_python("3.0") is None


@pytest.mark.parametrize(
    ("pythons", "expected"),
    [
        (("3.11", "3.12", "3.13"), "py312-jax0120"),
        (("3.11", "3.13"), "py313-newest"),
        (("3.11", "3.14"), "py314-newest"),
        (("3.11",), "py311-oldest"),
    ],
)
def test_another_cell_is_one_whose_python_is_installed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pythons: tuple[str, ...],
    expected: str,
):
    monkeypatch.setattr(run, "find_python", lambda version: version if version in pythons else None)
    assert run.other_cell(read_cells()) == expected
    passed_over = read_table()["other"]["cells"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == passed_over[: passed_over.index(expected)]
    assert all(" is skipped: there is no Python 3." in line for line in printed)


def test_the_table_has_the_versions_of_its_cells():
    rows = read_csv(TABLE)
    assert rows
    for row in rows:
        cell = read_cells()[row["cell"]]
        assert row["python"].startswith(f"{cell.python}.")
        assert {name: row[name] for name in cell.pins if name != "jaxlib"} == {
            name: pin for name, pin in cell.pins.items() if name != "jaxlib"
        }
        assert row["tests"] in ("all", "subset")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"passed": 9, "failed": 0, "skipped": 1}, None, (9, 0, 0)),
        ({"passed": 7, "failed": 2, "skipped": 1}, (1, 1), (8, 1, 1)),
        ({"passed": 0, "failed": 11, "skipped": 1}, None, (0, 11, 0)),
    ],
)
def test_failed_tests_run_once_more_alone_if_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    first: dict[str, int],
    second: tuple[int, int] | None,
    expected: tuple[int, int, int],
):
    results = [first]
    if second is not None:
        results.append({"passed": second[0], "failed": second[1], "skipped": 0})
    left = iter(results)
    monkeypatch.setattr(run, "_counted", lambda *_, **__: next(left))
    counts = run.count_tests(tmp_path, tmp_path / "report.xml", subset=False)
    assert tuple(counts[name] for name in ("passed", "failed", "alone")) == expected
    assert next(left, None) is None
