"""Measure: `python -m experiments.emulation.run [probes] [training] [--mpirun PATH]`, as root.

`--mpirun` probes with another MPI, such as MPICH, with the Python in the same folder.
"""

import argparse
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.emulation.probes import probe
from experiments.emulation.training import WAYS, train_by
from experiments.progress import counted
from experiments.table import markdown, write_csv

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"


def main() -> None:
    """Measure the named parts; by default, both. Write a table per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="probes, training; default: both")
    parser.add_argument("--mpirun", help="mpirun of another MPI, for the probes")
    options = parser.parse_args()
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    parts = options.parts or ["probes", "training"]
    if "probes" in parts:
        probes = counted(cases["probes"], "probes")
        rows = [row for case in probes for row in probe(case, options.mpirun)]
        _write("probes-mpich" if options.mpirun else "probes", rows)
    if "training" in parts:
        _write("training", _training(cases["training"]))


def _training(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in counted(range(case["rounds"]), "rounds of training"):
            for way in WAYS:
                row = train_by(way, case, Path(folder) / f"{way}-{number}")
                rows.append({"round": number, "scale": case["scale"], **row})
    return rows


def _write(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    _RESULTS.mkdir(exist_ok=True)
    write_csv(rows, _RESULTS / f"{name}.csv")
    print(markdown(rows))


if __name__ == "__main__":
    main()
