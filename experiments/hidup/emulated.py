"""Run the programs of figures 6 and 8 on 8 to 64 ranks: computes paced, links emulated.

    python -m experiments.hidup.emulated                          8, 16 and 32 ranks
    python -m experiments.hidup.emulated 64 vit-switch deepspeed  one model and system on 64
    python -m experiments.hidup.emulated 8 late                   bars whose messages were late

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

_SYSTEMS = (System.HIDUP, System.DEEPSPEED, System.FASTMOE)
_STRETCH = {8: 8.0, 16: 12.0, 32: 30.0, 64: 60.0}
"""Real seconds for each emulated second: more ranks share the same cores."""
_LATE_MS = 0.2
"""Bars with a larger mean lateness are `late`: the machine did not keep up."""
_SLOWER = 3.0
"""Times the stretch, for bars that were late."""
_TIMEOUT_S = 3600.0
_TABLE = Path(__file__).parent / "results" / "emulated.csv"


def measured_bars(names: Sequence[str], *, num_devices: int) -> list[Bar]:
    """Return the bars of HiDup, DeepSpeed-MoE and FastMoE in figures 6 and 8, on some devices.

    `names` are of models and of systems; `late` are the bars of the table that were late.
    """
    late = _late() if "late" in names else None
    models = [each for each in names if each in MODELS]
    systems = [each for each in _SYSTEMS if each.value in names]
    return [
        bar
        for bar in bars()
        if _devices(bar) == num_devices
        and bar.system in (systems or _SYSTEMS)
        and bar.model in (models or MODELS)
        and (late is None or _names(bar) in late)
    ]


def _devices(bar: Bar) -> int | None:
    """Return the devices of a bar of figure 6 or 8."""
    if bar.figure == 8:
        return 8
    return int(bar.condition.split(maxsplit=1)[0]) if bar.figure == 6 else None


def _late() -> set[tuple[str, ...]]:
    return {_key(row) for row in read_csv(_TABLE) if float(row["late_ms"]) > _LATE_MS}


def main(arguments: Sequence[str]) -> None:
    """Run the numbers of ranks and the models that are named, and write the table."""
    numbers = [int(each) for each in arguments if each.isdigit()] or [8, 16, 32]
    names = [each for each in arguments if not each.isdigit()]
    if not set(names) <= {*MODELS, *_SYSTEMS, "late"} or not set(numbers) <= set(_STRETCH):
        raise SystemExit(
            f"name ranks ({[*_STRETCH]}), models ({', '.join(MODELS)}), systems, `late`"
        )
    for number in numbers:
        _merge(_run(number, names))
    print(markdown([*read_csv(_TABLE)]))


def _run(num_ranks: int, names: Sequence[str]) -> list[Row]:
    command = [
        *launch_command(find_mpirun(), num_ranks=num_ranks),
        *(sys.executable, "-P", "-m", "experiments.hidup.emulated_rank"),
        *(str(_STRETCH[num_ranks] * (_SLOWER if "late" in names else 1)), *names),
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
    known: dict[tuple[str, ...], Row] = {}
    for row in [*(read_csv(_TABLE) if _TABLE.exists() else []), *rows]:
        known[_key(row)] = row
    write_csv([known[each] for each in map(_names, bars()) if each in known], _TABLE)


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in COLUMNS[:4])


def _names(bar: Bar) -> tuple[str, ...]:
    return str(bar.figure), bar.condition, bar.model, bar.system.value


if __name__ == "__main__":
    main(sys.argv[1:])
