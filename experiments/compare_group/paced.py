"""Execute the settings with paced compute: one launch of 64 ranks, one job after the other.

Each row is written as soon as its job is done, so that an interrupted run can be resumed.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.compare_group.cases import Cases, Setting
from experiments.compare_group.simulated import TABLE as SIMULATED
from experiments.table import read_csv, write_csv
from jaxpipe.baselines.systems import System
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

TABLE = "paced.csv"
LATE_COLUMN = "messages late, mean ms"
_TIMEOUT_S = 3600.0

Todo = tuple[str, Setting]
"""The name of a case, and a setting."""


def run_paced(jobs: Sequence[Todo], folder: Path, *, num_ranks: int, seconds: float) -> None:
    """Execute jobs of the simulated table, the time of each scaled to last `seconds`.

    All jobs have about the same number of messages, so the machine keeps up with all of them.

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
        raise RuntimeError(f"the ranks exited with {code}; see their output above")


def keep_rows(folder: Path, *, resume: bool, late_ms: float | None) -> None:
    """Drop the rows that are to be measured again: all, or those that ran too fast.

    A job ran too fast for this machine if its messages were more than `late_ms` late on average, in
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
    """Return the jobs to execute, case by case: of all cases, or of those that `only` names.

    ZeRO-3 is left out, because its collectives are a formula in its durations, and Megatron's best
    layout where it equals its pipeline.
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
    """Return the jobs of a table."""
    return [(row["case"], Setting(row["setting"])) for row in read_rows(path)]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; a missing table has none."""
    return read_csv(path) if path.exists() else []
