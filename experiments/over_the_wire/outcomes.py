"""The rows of a run and of the table, and pictures of the losses over time.

`runs.csv` has what was metered of each run, `curves.csv` its steps; `table.csv` follows from both.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import fmean, median

from experiments.over_the_wire.systems import Cell, Outcome, read_systems
from experiments.runtime_benchmark.picture import lines
from experiments.table import Row, append_csv, grouped, numbers, read_csv, write_csv

RESULTS = Path(__file__).parent / "results"
RUNS, CURVES, TABLE, RECOVERY = "runs.csv", "curves.csv", "table.csv", "recovery.csv"
NETWORKS = ("campus", "universities", "continents", "home", "unlike", "regions")
STATED_LOSS = 3.35
"""Nats per byte, for `seconds_to_loss`: what nearly all systems reach in so few steps."""
_PERIOD = 10
"""Steps in which systems that meet seldom meet once; step times are means over whole periods."""
_KEY = ("network", "system", "schedule")
_RUN = (*_KEY, "run")
Curve = Sequence[tuple[float, float]]
"""Held-out losses over seconds."""


def run_row(cell: Cell, outcome: Outcome, *, number: int) -> Row:
    """Return what was metered of a run."""
    config, clock = cell.config, [point.seconds for point in outcome.points]
    cpu_s, sent_bytes = outcome.meters.of_training()
    clocks = outcome.clocks or (clock,)
    steps_per_second = fmean(1 / seconds_per_step(of_rank) for of_rank in clocks)
    return {
        **_key(cell, number),
        "plan": outcome.schedule,
        "step_seconds": seconds_per_step(clock),
        # Each rank has an equal share of a batch.
        "tokens_per_second": config.train.batch * config.model.sequence * steps_per_second,
        "gigabytes": sent_bytes / 1e9,
        "cpu_seconds": cpu_s,
        "peak_memory_mb": outcome.meters.peak_bytes / 1e6,
        "load": outcome.load,
    }


def curve_rows(cell: Cell, outcome: Outcome, *, number: int) -> list[Row]:
    """Return the steps of a run."""
    return [
        {
            **_key(cell, number),
            "step": point.step,
            "seconds": point.seconds,
            "loss": f"{point.loss:.6g}",
            "held_out": "" if point.held_out is None else f"{point.held_out:.6g}",
        }
        for point in outcome.points
    ]


def seconds_per_step(clock: Sequence[float]) -> float:
    """Return the mean seconds of a step over whole periods after the first, given their ends.

    >>> seconds_per_step([5.0, 6.0, 7.0])
    1.0
    """
    first = _PERIOD if len(clock) > _PERIOD else 1
    last = len(clock) - (len(clock) - first) % _PERIOD if len(clock) > 2 * _PERIOD else len(clock)
    return (clock[last - 1] - clock[first - 1]) / (last - first)


def loss_at(curve: Curve, seconds: float) -> float:
    """Return the loss at a time, between two measurements on a straight line; NaN outside.

    >>> loss_at([(1.0, 5.0), (3.0, 3.0)], 2.0)
    4.0
    """
    for (before_s, before), (after_s, after) in pairwise(curve):
        if before_s <= seconds <= after_s:
            return before + (after - before) * (seconds - before_s) / (after_s - before_s)
    return nan


def time_to(curve: Curve, loss: float) -> float:
    """Return when a loss is reached first; NaN if it is not.

    >>> time_to([(1.0, 5.0), (3.0, 3.0)], 4.0)
    2.0
    """
    if curve and curve[0][1] <= loss:
        return curve[0][0]
    for (before_s, before), (after_s, after) in pairwise(curve):
        if after <= loss:
            return before_s + (after_s - before_s) * (before - loss) / (before - after)
    return nan


def write_table(folder: Path) -> list[Row]:
    """Write the table of all runs and a picture of each network; return medians of the runs."""
    curves = {
        key: [(float(row["seconds"]), float(row["held_out"])) for row in rows if row["held_out"]]
        for key, rows in grouped(read_csv(folder / CURVES), *_RUN).items()
    }
    runs = read_csv(folder / RUNS)
    recovery = recoveries(read_csv(folder / RECOVERY) if (folder / RECOVERY).exists() else [])
    ends = {
        network: min(curves[_of(row, _RUN)][-1][0] for row in rows)
        for (network,), rows in grouped(runs, "network").items()
    }
    table = [table_row(row, curves[_of(row, _RUN)], ends, recovery) for row in runs]
    write_csv(table, folder / TABLE)
    for (network,), rows in grouped(table, "network").items():
        first = {_of(row, ("system", "schedule")): _of(row, _RUN) for row in reversed(rows)}
        by_name = {": ".join(name): curves[key] for name, key in reversed(first.items())}
        draw(by_name, folder / f"{network}.png", title=f"held-out loss, {network}")
    return medians(table)


def table_row(
    row: Row, curve: Curve, ends: dict[str, float], recovery: dict[tuple[str, ...], str]
) -> Row:
    """Return the row of a run; `ends` has the seconds at which losses of a network are compared."""
    return {
        **{name: row[name] for name in (*_RUN, "step_seconds", "tokens_per_second")},
        "loss_after_time": _cell(loss_at(curve, ends[str(row["network"])])),
        "loss_after_tokens": _cell(curve[-1][1]),
        "seconds_to_loss": _cell(time_to(curve, STATED_LOSS)),
        **{name: row[name] for name in ("gigabytes", "cpu_seconds", "peak_memory_mb")},
        "recovery_seconds": recovery.get(_of(row, ("system", "schedule")), ""),
    }


def recoveries(rows: Sequence[Row]) -> dict[tuple[str, ...], str]:
    """Return the median seconds of recovery of each system that was measured.

    It is "no" for those that do not claim to survive.
    """
    groups = grouped(rows, "system", "schedule")
    mortal = (system for system in read_systems() if not system.survives)
    return {(system.system, system.schedule): "no" for system in mortal} | {
        key: f"{median(numbers(group, 'recovery_seconds')):.3g}" for key, group in groups.items()
    }


def medians(table: Sequence[Row]) -> list[Row]:
    """Return the medians of the runs of each cell, with their spread where there are several."""
    rows: list[Row] = []
    for key, group in grouped(table, *_KEY).items():
        columns = [name for name in group[0] if name not in _RUN]
        rows.append(
            dict(zip(_KEY, key, strict=True))
            | {name: _median([str(row[name]) for row in group]) for name in columns}
        )
    return rows


def keep(cell: Cell, outcome: Outcome, folder: Path, *, number: int) -> None:
    """Append a run to the files of results; that of a killed rank to those of recoveries."""
    if cell.kill_after is not None:
        append_csv(
            {**_key(cell, number), "recovery_seconds": outcome.recovery_s}, folder / RECOVERY
        )
        return
    append_csv(run_row(cell, outcome, number=number), folder / RUNS)
    for row in curve_rows(cell, outcome, number=number):
        append_csv(row, folder / CURVES)


def draw(curves: Mapping[str, Curve], path: Path, *, title: str) -> None:
    """Draw held-out losses over time."""
    lines(
        {name: ([x for x, _ in curve], [y for _, y in curve]) for name, curve in curves.items()},
        path,
        title=title,
        labels=("seconds of training", "nats per byte"),
    )


def _key(cell: Cell, number: int) -> Row:
    system = cell.system
    names = (cell.network, system.system, system.schedule, number)
    return dict(zip(_RUN, names, strict=True))


def _of(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in names)


def _cell(value: float) -> str:
    return "" if isnan(value) else f"{value:.4g}"


def _median(cells: Sequence[str]) -> str:
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        return cells[0]
    text = f"{median(values):.4g}"
    return text if len(values) == 1 else f"{text} ({min(values):.4g} to {max(values):.4g})"
