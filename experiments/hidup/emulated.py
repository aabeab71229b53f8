"""Run the programs of figures 6 to 8 on 2 to 64 ranks: computes paced, links emulated.

    python -m experiments.hidup.emulated                6 and 8 on 8 and 16 ranks: 8 minutes
    python -m experiments.hidup.emulated figure-7       7 on 2, 4 and 8 ranks: 7 minutes
    python -m experiments.hidup.emulated 32             6 on 32 ranks: 21 minutes
    python -m experiments.hidup.emulated 64 vit-switch  one model on 64 ranks: 13 minutes
    python -m experiments.hidup.emulated 8 late         bars whose messages were late

Rows of what is run replace those of an earlier run in `results/emulated.csv`.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.hidup.workloads import MODELS, Bar, bars
from experiments.table import Row, grouped, markdown, numbers, read_csv, write_csv
from jaxpipe.baselines.systems import System
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

COLUMNS = (
    *("figure", "condition", "model", "system", "ranks"),
    *("emulated_s", "simulated_s", "ratio", "simulated_on_links_s", "ratio_on_links"),
    *("late_ms", "stretch"),
)
"""`late_ms` is the mean lateness of messages, emulated; `stretch` is of time."""

_SYSTEMS = (System.HIDUP, System.DEEPSPEED_MOE, System.FASTMOE, System.HOROVOD, System.DDP)
_STRETCH = {2: 32.0, 4: 32.0, 8: 8.0, 16: 16.0, 32: 90.0, 64: 300.0}
"""Real seconds for each emulated second: more ranks share the same cores."""
_ONE_HOST = "figure-7"
"""Names the bars of one host, whose collectives are short: they are stretched alike."""
_ONE_HOST_STRETCH = 32.0
_LATE_MS = 0.2
"""Bars with a larger mean lateness are `late`: the machine did not keep up."""
_NEAR = 0.1
_SLOWER = 3.0
"""Times the stretch, for bars that were late."""
_TIMEOUT_S = 3600.0
_TABLE = Path(__file__).parent / "results" / "emulated.csv"


def measured_bars(names: Sequence[str], *, num_devices: int) -> list[Bar]:
    """Return the bars of the systems of a figure on some devices.

    `names` are of models and of systems; `figure-7` are the bars of figure 7 instead of those of
    figures 6 and 8; `late` are the bars of the table that were late.
    """
    late = _late() if "late" in names else None
    models = [each for each in names if each in MODELS]
    systems = [each for each in _SYSTEMS if each.value in names]
    return [
        bar
        for bar in bars()
        if (bar.figure == 7) == (_ONE_HOST in names)
        and _devices(bar) == num_devices
        and bar.system in (systems or _SYSTEMS)
        and bar.model in (models or MODELS)
        and (late is None or _names(bar) in late)
    ]


def _devices(bar: Bar) -> int:
    return 8 if bar.figure == 8 else int(bar.condition.split(maxsplit=1)[0])


def _late() -> set[tuple[str, ...]]:
    return {_key(row) for row in read_csv(_TABLE) if float(row["late_ms"]) > _LATE_MS}


def main(arguments: Sequence[str]) -> None:
    """Run the numbers of ranks and the models that are named, and write the table."""
    names = [each for each in arguments if not each.isdigit()]
    default = [2, 4, 8] if _ONE_HOST in names else [8, 16]
    ranks = [int(each) for each in arguments if each.isdigit()] or default
    known = {*MODELS, *_SYSTEMS, _ONE_HOST, "late"}
    if not set(names) <= known or not set(ranks) <= set(_STRETCH):
        raise SystemExit(
            f"name ranks ({[*_STRETCH]}), models ({', '.join(MODELS)}), systems, `{_ONE_HOST}`, "
            "`late`"
        )
    for number in ranks:
        _merge(_run(number, names))
    text = summary(read_csv(_TABLE))
    _TABLE.with_suffix(".md").write_text(f"{text}\n")
    print(text)


def summary(rows: Sequence[Row]) -> str:
    """Return the part of NOTES.md that follows from the rows of `results/emulated.csv`."""
    groups = grouped(rows, "figure", "condition", "system")
    table = [
        {
            "figure, condition": f"{figure}, {condition}",
            "system": system,
            "bars": len(own),
            "emulated / simulated: median, worst": _median_and_worst(own, "ratio"),
            "on these links: median, worst": _median_and_worst(own, "ratio_on_links"),
            "late ms, most": f"{max(numbers(own, 'late_ms')):.2f}",
        }
        for (figure, condition, system), own in groups.items()
    ]
    worst = max(rows, key=lambda row: _distance(float(row["ratio"])))
    prompt = [row for row in rows if float(row["late_ms"]) <= _LATE_MS]
    near = sum(abs(ratio - 1) <= _NEAR for ratio in numbers(rows, "ratio"))
    furthest = max(abs(ratio - 1) for ratio in numbers(prompt, "ratio"))
    return (
        f"{markdown(table)}\n\n{near} of {len(rows)} bars are within {_NEAR:.0%} of the simulated "
        f"ones. The worst is {worst['system']}, `{worst['model']}`, figure {worst['figure']}, "
        f"{worst['condition']}: {float(worst['ratio']) - 1:+.1%}. The {len(prompt)} bars whose "
        f"messages were at most {_LATE_MS:g} ms late are within {furthest:.1%}."
    )


def _median_and_worst(rows: Sequence[Row], column: str) -> str:
    ratios = numbers(rows, column)
    return f"{median(ratios):.2f}, {max(ratios, key=_distance):.2f}"


def _distance(ratio: float) -> float:
    return abs(math.log(ratio))


def _run(num_ranks: int, names: Sequence[str]) -> list[Row]:
    stretch = _ONE_HOST_STRETCH if _ONE_HOST in names else _STRETCH[num_ranks]
    command = [
        *launch_command(find_mpirun(), num_ranks=num_ranks),
        *(sys.executable, "-P", "-m", "experiments.hidup.emulated_rank"),
        *(str(stretch * (_SLOWER if "late" in names else 1)), *names),
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
