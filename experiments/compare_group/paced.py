"""Executes the settings with paced compute: one launch of 64 ranks, one job after the other.

A row is written as soon as its job is measured, so that what was interrupted can be resumed.
"""

import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.compare_group.cases import Cases
from experiments.compare_group.setting import Setting
from experiments.compare_group.simulated import TABLE as SIMULATED
from experiments.dtfm_iteration_time.table import write_csv
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.simulate import System

TABLE = "paced.csv"
LATE_COLUMN = "messages late, mean ms"
_TIMEOUT_S = 3600.0

Todo = tuple[str, Setting]
"""The name of a case, and a setting."""


def run_paced(jobs: Sequence[Todo], folder: Path, *, num_ranks: int, seconds: float) -> None:
    """Execute jobs that the simulated table has, each stretched or squeezed into so many `seconds`.

    Jobs have about as many messages each, so that is what this machine can keep up with.

    Raises:
        RuntimeError: a rank failed.
    """
    path = folder / TABLE
    left = [each for each in jobs if each not in done(path)]
    print(f"{len(left)} jobs, each a whole step: emulated, paced", flush=True)
    if not left:
        return
    command = [
        *launch_command(find_mpirun(), num_ranks=num_ranks),
        *(sys.executable, "-m", "experiments.compare_group.paced_rank"),
        *("--folder", str(folder), "--seconds", str(seconds)),
        *[f"{name}:{setting.value}" for name, setting in left],
    ]
    code = subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode
    if code:
        raise RuntimeError(f"the ranks ended with {code}; see what they said above")


def keep_rows(folder: Path, *, resume: bool, late_ms: float | None) -> None:
    """Drop the rows of a table that are measured again: all, or those that were too fast.

    Too fast for this machine are those whose messages were later than `late_ms` on average, of
    emulated time.
    """
    path = folder / TABLE
    rows = read_rows(path)
    kept = [
        row for row in rows if resume and (late_ms is None or float(row[LATE_COLUMN]) <= late_ms)
    ]
    if kept:
        write_csv(kept, path)
    else:
        path.unlink(missing_ok=True)


def todo(cases: Cases, folder: Path, *, only: Sequence[str] | None = None) -> list[Todo]:
    """Return what is executed, case by case; of all cases, or of those that `only` names.

    ZeRO-3 is not, for its collectives are a formula in its durations; nor Megatron's best layout
    where that is its pipeline.
    """
    rows = {(row["case"], row["setting"]): row for row in read_rows(folder / SIMULATED)}
    same = System.MEGATRON_P8.value
    return [
        (case.name, setting)
        for case in cases.cases
        if not only or case.name in only
        for setting in Setting
        if setting is not Setting.ZERO3
        if not (
            setting is Setting.MEGATRON_OPTIMAL and rows[case.name, setting.value]["runs"] == same
        )
    ]


def done(path: Path) -> Sequence[Todo]:
    """Return what a table has."""
    return [(row["case"], Setting(row["setting"])) for row in read_rows(path)]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none of one that is missing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
