"""Run the programs of figures 6 and 8 on 8 to 64 ranks: computes paced, links emulated.

    python -m experiments.hidup.emulated                          8, 16 and 32 ranks
    python -m experiments.hidup.emulated 64 bert-switch           one model on 64

Rows of what is run replace those of an earlier run in `results/emulated.csv`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.hidup.workloads import MODELS, Bar, bars
from experiments.table import Row, markdown, read_csv, write_csv
from jaxpipe.autoshard.duplex.systems import System
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

COLUMNS = (
    *("figure", "condition", "model", "system", "ranks"),
    *("emulated_s", "simulated_s", "ratio", "simulated_on_links_s", "ratio_on_links"),
    *("late_ms", "stretch"),
)
"""`late_ms` is the mean lateness of messages, emulated; `stretch` is of time."""

_STRETCH = {8: 8.0, 16: 12.0, 32: 30.0, 64: 100.0}
"""Real seconds for each emulated second: more ranks share the same cores."""
_TIMEOUT_S = 3600.0
_TABLE = Path(__file__).parent / "results" / "emulated.csv"


def measured_bars(models: Sequence[str], *, num_devices: int) -> list[Bar]:
    """Return the bars of HiDup, DeepSpeed-MoE and FastMoE in figures 6 and 8, on some devices."""
    conditions = {6: f"{num_devices} GPUs", 8: "Gbps" if num_devices == 8 else "none"}
    return [
        bar
        for bar in bars()
        if bar.figure in conditions
        and bar.condition.endswith(conditions[bar.figure])
        and (bar.figure == 8 or bar.condition == conditions[6])
        and bar.model in (models or MODELS)
        and bar.system in (System.HIDUP, System.DEEPSPEED, System.FASTMOE)
    ]


def main(arguments: Sequence[str]) -> None:
    """Run the numbers of ranks and the models that are named, and write the table."""
    numbers = [int(each) for each in arguments if each.isdigit()] or [8, 16, 32]
    models = [each for each in arguments if not each.isdigit()]
    if not set(models) <= set(MODELS) or not set(numbers) <= set(_STRETCH):
        raise SystemExit(f"name models ({', '.join(MODELS)}) and ranks ({[*_STRETCH]})")
    for number in numbers:
        _merge(_run(number, models))
    print(markdown([*read_csv(_TABLE)]))


def _run(num_ranks: int, models: Sequence[str]) -> list[Row]:
    command = [
        *launch_command(find_mpirun(), num_ranks=num_ranks),
        *(sys.executable, "-P", "-m", "experiments.hidup.emulated_rank"),
        *(str(_STRETCH[num_ranks]), *models),
    ]
    threads = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
        env=os.environ | threads | {"PYTHONPATH": str(Path.cwd())},
    )
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def _merge(rows: Sequence[Row]) -> None:
    def key(row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in COLUMNS[:4])

    known = {key(row): row for row in (read_csv(_TABLE) if _TABLE.exists() else [])}
    known |= {key(row): row for row in rows}
    order = [key(dict(zip(COLUMNS, _names(bar), strict=False))) for bar in bars()]
    write_csv([known[each] for each in order if each in known], _TABLE)


def _names(bar: Bar) -> tuple[str | int, ...]:
    return bar.figure, bar.condition, bar.model, bar.system.value


if __name__ == "__main__":
    main(sys.argv[1:])
