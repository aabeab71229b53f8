"""Writes all tables and plots of what is in a folder of results."""

from pathlib import Path

from experiments.compare_group.outcome import read_results
from experiments.compare_group.picture import draw_real, draw_settings
from experiments.compare_group.real import read_measured
from experiments.compare_group.real_table import real_rows
from experiments.compare_group.reports import (
    against_published,
    against_theirs,
    end_to_end,
    implementation,
    scheduler,
)
from experiments.dtfm_iteration_time.table import Row, markdown, write_csv

_HOMOGENEOUS = "homogeneous"


def write_tables(folder: Path) -> None:
    """Write `tables.md`, a CSV for each of its tables, and the plots; print the tables.

    Raises:
        RuntimeError: settings that compute the same have other losses.
    """
    results = read_results(folder)
    tables: dict[str, tuple[str, list[Row]]] = {
        "end_to_end": ("End to end: (a) and (c), seconds", end_to_end(results)),
        "scheduler": ("Effect of the scheduler: (c), (d), (b), seconds", scheduler(results)),
        "implementation": (
            "Effect of the implementation: (b) and (d) on equal links, seconds",
            implementation(results, _HOMOGENEOUS),
        ),
        "against_published": ("DT-FM's options executed, seconds", against_published(results)),
        "against_theirs": ("Ours and DT-FM's, both scheduled, seconds", against_theirs(results)),
    }
    draw_settings(results, folder / "settings.png")
    measured = read_measured(folder)
    if measured:
        rows = real_rows(measured)
        tables["real"] = ("The small model, trained", rows)
        draw_real(rows, folder / "real.png")
    for name, (_, rows) in tables.items():
        write_csv(rows, folder / f"{name}.csv")
    text = "\n\n".join(f"## {title}\n\n{markdown(rows)}" for title, rows in tables.values())
    (folder / "tables.md").write_text(text + "\n")
    print(text)
