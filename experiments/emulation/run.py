"""Measure: `python -m experiments.emulation.run [probes] [training] [--mpirun PATH]`, as root.

`--mpirun` probes with another MPI, such as MPICH's, whose Python lies beside it.
"""

import argparse
import csv
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.emulation.probes import probe
from experiments.emulation.training import WAYS, train_by

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"


def main() -> None:
    """Measure what is named, or everything, and write a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="probes, training; both if none is named")
    parser.add_argument("--mpirun", help="the mpirun of another MPI, for the probes")
    options = parser.parse_args()
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    parts = options.parts or ["probes", "training"]
    if "probes" in parts:
        rows = [row for case in cases["probes"] for row in probe(case, options.mpirun)]
        _write("probes-mpich" if options.mpirun else "probes", rows)
    if "training" in parts:
        _write("training", _training(cases["training"]))


def _training(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(case["rounds"]):
            for way in WAYS:
                row = train_by(way, case, Path(folder) / f"{way}-{number}")
                rows.append({"round": number, "scale": case["scale"], **row})
    return rows


def _write(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    _RESULTS.mkdir(exist_ok=True)
    with (_RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + " --- |" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


if __name__ == "__main__":
    main()
