"""A rank that is killed at a named point, as `jaxpipe chaos` does it: nothing of it remains."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import mpi_environment

# `tests/cli/test_faults.py` kills a rank, `test_corrupt.py` runs a family by its command.
pytestmark = [pytest.mark.mpi, pytest.mark.deep]

SCALAR_SUM_OF_RANK_1 = "1"
"""The seed of this target."""


def test_a_run_ends_as_if_no_rank_had_been_killed(tmp_path: Path) -> None:
    words = ("kill", "--trials", "1", "--seed", SCALAR_SUM_OF_RANK_1, "--report", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", "chaos", *words],
        env=mpi_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    with (tmp_path / "trials.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["family"], row["name"]) == ("kill", "rank 1 at scalar-sum")
    is_late = row["why"].startswith("the job was gone after")  # looked at last; no test takes times
    assert row["passed"] == "yes" or is_late, done.stdout + done.stderr
    assert float(row["rank_named"]) == 1
    assert "1 of 1" in done.stdout or is_late
    assert (tmp_path / "scorecard.md").exists()
