"""Write all tables and plots: `python -m experiments.dtfm_iteration_time.run`.

All columns except those called published are simulated, with the constants in
`jaxpipe/simulate/data/dtfm.toml`.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments.dtfm_iteration_time.by_rule import write_ours
from experiments.dtfm_iteration_time.layouts import layout_rows, layout_summary
from experiments.dtfm_iteration_time.picture import draw_theirs
from experiments.dtfm_iteration_time.planned import NUMBER, write_planned
from experiments.dtfm_iteration_time.prediction import (
    Prediction,
    pipeline_seconds,
    predict_all,
    seconds_of,
)
from experiments.dtfm_iteration_time.published import (
    CLUSTERS,
    FITTED_CASES,
    Cell,
    cells,
    pipeline_cells,
)
from experiments.table import Row, markdown, percent, write_csv
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.simulate import Constants, dtfm_constants

_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Simulate the published runs and our own plans, and write the tables and plots."""
    constants = dtfm_constants()
    measured = cells()
    with ProcessPoolExecutor() as executor:
        predictions = predict_all(constants, executor)
        write_ours(constants, executor)
        write_planned(constants, executor)
    simulated = seconds_of(measured, predictions)
    errors = simulated / np.array([cell.seconds for cell in measured]) - 1
    tables = {
        "iteration": _iteration_rows(measured, predictions),
        "summary": _summary_rows(measured, errors),
        "pipeline": _pipeline_rows(constants),
        "layouts": layout_rows(constants),
    }
    for name, rows in tables.items():
        write_csv(rows, _RESULTS / f"{name}.csv", number=NUMBER)
    (_RESULTS / "tables.md").write_text(_document(tables, measured, simulated))
    (_RESULTS / "constants.json").write_text(json.dumps(asdict(constants), indent=2) + "\n")
    draw_theirs(measured, simulated, _RESULTS / "theirs.png")
    print(markdown(tables["summary"], number=NUMBER))


def _iteration_rows(measured: Sequence[Cell], predictions: Sequence[Prediction]) -> list[Row]:
    """Return a row for every system, size and seed on every cluster, published or not.

    A published time without a prediction of its own, which is one of a run whose placement no seed
    changes, stands in the row of its system.
    """
    published: dict[tuple[str, str, int, int], list[tuple[int | None, float]]] = defaultdict(list)
    for cell in measured:
        key = (CLUSTERS[cell.case], cell.system, cell.layers, cell.batch)
        published[key].append((cell.seed, cell.seconds))
    fitted = {CLUSTERS[case] for case in FITTED_CASES}
    rows: list[Row] = []
    for each in predictions:
        cells_of = published[each.cluster, each.system, each.layers, each.batch]
        times = [s for seed, s in cells_of if each.seed is None or seed in (None, each.seed)]
        mean_s = float(np.mean(times)) if times else None
        flop = Workload(num_layers=each.layers, batch=each.batch).step_flop
        rows.append(
            {
                "cluster": each.cluster,
                "system": each.system,
                "layers": each.layers,
                "batch": each.batch,
                "seed": each.seed or "",
                "published_s": "" if mean_s is None else mean_s,
                "simulated_s": each.seconds,
                "error": "" if mean_s is None else percent(each.seconds / mean_s - 1),
                "published_pflops": "" if mean_s is None else flop / mean_s / 1e15,
                "simulated_pflops": flop / each.seconds / 1e15,
                "constants": (
                    "fitted here"
                    if each.cluster in fitted and each.system.startswith("dtfm")
                    else "not fitted here"
                ),
            }
        )
    return rows


def _summary_rows(measured: Sequence[Cell], errors: np.ndarray) -> list[Row]:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, error in zip(measured, errors, strict=True):
        for case in (str(cell.case), "all"):
            groups[cell.system, case].append(float(error))
            if cell.system.startswith("dtfm"):
                groups["dtfm", case].append(float(error))
    rows: list[Row] = [
        {
            "system": system,
            "case": case,
            "cells": len(group),
            "median absolute error": _size(np.median(np.abs(group))),
            "mean error": percent(float(np.mean(group))),
            "largest absolute error": _size(np.max(np.abs(group))),
            "within 10 %": _size(np.mean(np.abs(group) <= 0.1)),
        }
        for (system, case), group in sorted(groups.items())
    ]
    return rows


def _size(part: float | np.floating) -> str:
    return f"{100 * part:.1f} %"


def _pipeline_rows(constants: Constants) -> list[Row]:
    rows: list[Row] = []
    for cell in pipeline_cells():
        seconds = pipeline_seconds(cell, constants)
        rows.append(
            {
                "delay_ms": cell.delay_ms,
                "bandwidth_gbps": cell.bandwidth_gbps,
                "replicas": cell.num_replicas,
                "published_s": cell.seconds,
                "simulated_s": seconds,
                "error": percent(seconds / cell.seconds - 1),
            }
        )
    return rows


def _winner_rows(measured: Sequence[Cell], simulated: np.ndarray) -> list[Row]:
    """Count the sizes in which the simulation predicts which of two systems is faster."""
    times: dict[tuple[int, int, int], dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for cell, seconds in zip(measured, simulated, strict=True):
        size = (cell.case, cell.layers, cell.batch)
        times[size][cell.system].append((cell.seconds, float(seconds)))
    pairs = (
        ("dtfm_scheduled", "dtfm_unscheduled"),
        ("dtfm_scheduled", "megatron_p8"),
        ("dtfm_scheduled", "zero_s3"),
        ("megatron_p8", "megatron_p8_unscheduled"),
        ("dtfm_scheduled", "megatron_p4t2"),
    )
    rows: list[Row] = []
    for first, second in pairs:
        sizes = [size for size in times.values() if first in size and second in size]
        right = sum(_agrees(size[first], size[second]) for size in sizes)
        rows.append({"systems": f"{first} or {second}", "sizes": len(sizes), "right": right})
    return rows


def _agrees(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> bool:
    published, simulated = np.mean(first, axis=0) < np.mean(second, axis=0)
    return bool(published == simulated)


def _document(tables: dict[str, list[Row]], measured: Sequence[Cell], simulated: np.ndarray) -> str:
    parts = {
        "Published and simulated, summary (simulated, fitted)": tables["summary"],
        "Sizes in which the faster of two systems is predicted": _winner_rows(measured, simulated),
        "The fp32 pipeline of 12 stages": tables["pipeline"],
        "The study of layouts, summary without doubtful runs": layout_summary(tables["layouts"]),
        "The study of layouts: Megatron and PyTorch Pipe on p3.16xlarge": tables["layouts"],
        "Every cluster, system and size, published or not": tables["iteration"],
    }
    return "".join(
        f"## {title}\n\n{markdown(rows, number=NUMBER)}\n\n" for title, rows in parts.items()
    ).removesuffix("\n")


if __name__ == "__main__":
    main()
