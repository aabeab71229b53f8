"""Tune all systems on one grid: `python -m experiments.over_the_wire.tune [--only SYSTEM]`.

Learning rates of AdamW, and for each system with an outer optimizer its learning rate and momentum,
are tried on the fastest network, once each; the last held-out loss decides. Prints the best cell of
each system, for `systems.toml`, and appends all cells to `results/tuned.csv`; cells that are there
are not repeated. Schedules that compute the same updates share the cell of `torch ddp: ddp`.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.over_the_wire.outcomes import NETWORKS, RESULTS
from experiments.over_the_wire.run import measure
from experiments.over_the_wire.systems import JAXPIPE, System, read_systems
from experiments.table import Row, append_csv, grouped, markdown, read_csv

_LEARNING_RATES = (5e-4, 1e-3, 2e-3)
_OUTER = ((0.7, 0.9), (0.7, 0.5), (1.0, 0.0))
"""Learning rate and momentum of the outer optimizer: published, milder, and a plain mean."""
_SYNCHRONOUS = "torch ddp: ddp"
_COLUMNS = ("system", "schedule", "learning_rate", "outer_learning_rate", "outer_momentum")


def main() -> None:
    """Run the cells that are missing, and print the best one of each system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="SYSTEM")
    parser.add_argument("--environments", type=Path, default=Path("build/over_the_wire"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    path = given.results / "tuned.csv"
    done = {_key(row) for row in read_csv(path)} if path.exists() else set()
    for system in read_systems():
        if given.only and not any(system.matches(text) for text in given.only):
            continue
        for tried, key in grid(system):
            if tuple(key.values()) in done:
                continue
            _, outcome = measure(tried, NETWORKS[0], given.environments, ())
            row = {**key, "held_out": f"{outcome.points[-1].held_out:.5g}"}
            print(markdown([row]), flush=True)
            append_csv(row, path)
    groups = grouped(read_csv(path), "system", "schedule").values()
    print(markdown([min(rows, key=lambda row: float(row["held_out"])) for rows in groups]))


def grid(system: System) -> Iterator[tuple[System, dict[str, str]]]:
    """Yield the settings to try of a system, with the cells of `_COLUMNS`; none of copies."""
    if not system.every and system.name != _SYNCHRONOUS and system.environment != "hivemind":
        return
    names = ("learning_rate", "momentum")
    if system.program != JAXPIPE:
        names = ("outer_learning_rate", "outer_momentum")
    # A plain mean has no momentum, and is no other system with one.
    has_outer = system.settings.get(names[1], 0.0) > 0
    for rate in _LEARNING_RATES:
        for outer in _OUTER if has_outer else [None]:
            settings = dict(system.settings) | dict(zip(names, outer or (), strict=False))
            cells = (system.system, system.schedule, rate, *(outer or ("", "")))
            tried = replace(system, learning_rate=rate, settings=settings)
            yield tried, dict(zip(_COLUMNS, map(str, cells), strict=True))


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in _COLUMNS)


if __name__ == "__main__":
    main()
