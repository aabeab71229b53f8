"""Measure every system at every rate: `python -m experiments.spmd_links.run --python PYTHON`.

PYTHON has jaxpipe's dependencies and MPICH. It needs root and two cores. Without `--python`, the
stored results are tabulated and drawn again.
"""

import argparse
import tempfile
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from experiments.emulated_links import namespaces
from experiments.spmd_links.links import cluster_name, cluster_of, run_linked
from experiments.spmd_links.picture import draw
from experiments.spmd_links.predict import predicted_s
from experiments.table import write_csv
from jaxpipe.baselines.compare.measured import MeasuredSystem, read_measured
from jaxpipe.baselines.systems import System
from jaxpipe.topo.emulate import EngineKind

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"
_MIB = 2**20


def main() -> None:
    """Measure if a Python is given; then tabulate and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="a Python with MPICH in the same folder")
    options = parser.parse_args()
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    if options.python is not None:
        _measure(options.python, cases)
    rows = _rows(cases)
    write_csv(rows, _RESULTS / "steps.csv")
    _draw(rows, cases)
    for row in rows:
        print(" | ".join(map(str, row.values())))


def _measure(python: Path, cases: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as cache:
        for number, gbps in product(range(cases["rounds"]), cases["gbps"]):
            assumed = gbps or cases["unshaped_gbps"]
            kind = EngineKind.HTB if gbps > 0 else EngineKind.UNSHAPED
            with namespaces(cluster_of(gbps=assumed), kind=kind) as links:
                for system in cases["systems"]:
                    arguments = ["compare", cases["config"], "--rank-of", system]
                    arguments += ["--set", f"plan.cluster={cluster_name(gbps=assumed)}"]
                    arguments += ["--steps", str(cases["steps"])]
                    arguments += ["--out", str(_folder(gbps, number))]
                    print(f"round {number}, {gbps or 'unshaped'} Gbps: {system} ...", flush=True)
                    run_linked(python, arguments, links=links, cache=Path(cache))


def _folder(gbps: float, number: int) -> Path:
    return _RESULTS / "rounds" / f"{f'{gbps}gbps' if gbps else 'unshaped'}-{number}"


def _runs(system: System, gbps: float, cases: Mapping[str, Any]) -> list[MeasuredSystem]:
    """Return the runs of all rounds, fastest first."""
    runs = [read_measured(_folder(gbps, number), system) for number in range(cases["rounds"])]
    return sorted(runs, key=lambda run: run.step_s)


def _middle(runs: list[MeasuredSystem]) -> MeasuredSystem:
    return runs[(len(runs) - 1) // 2]


def _rows(cases: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _row(System(system), gbps, cases) for gbps in cases["gbps"] for system in cases["systems"]
    ]


def _row(system: System, gbps: float, cases: Mapping[str, Any]) -> dict[str, Any]:
    runs = _runs(system, gbps, cases)
    measured, unshaped = _middle(runs), _middle(_runs(system, 0, cases))
    is_predicted = gbps > 0 and measured.strategy == unshaped.strategy
    return {
        "gbps_emulated": gbps or "unshaped",
        "system": system.value,
        "runs": measured.strategy,
        "step_s_measured": f"{measured.step_s:.3f}",
        "rounds": f"{runs[0].step_s:.3f} to {runs[-1].step_s:.3f}",
        "step_s_predicted": f"{_predicted(system, gbps, cases):.3f}" if is_predicted else "",
        "sent_mib_a_rank": f"{max(rank.sent_bytes for rank in measured.ranks) / _MIB:.3f}",
        "sent_is": "counted" if measured.is_counted else "measured",
        "last_loss_measured": f"{measured.steps[-1].loss:.5f}",
    }


def _predicted(system: System, gbps: float, cases: Mapping[str, Any]) -> float:
    """Predict from the unshaped run."""
    return predicted_s(
        _middle(_runs(system, 0, cases)),
        Path(cases["config"]),
        gbps=gbps,
        unshaped_gbps=cases["unshaped_gbps"],
    )


def _draw(rows: list[dict[str, Any]], cases: Mapping[str, Any]) -> None:
    dots: dict[str, list[tuple[float, float]]] = {system: [] for system in cases["systems"]}
    for row in rows:
        if row["gbps_emulated"] != "unshaped":
            point = (float(row["gbps_emulated"]), float(row["step_s_measured"]))
            dots[row["system"]].append(point)
    predicted = {
        system: [
            (gbps, _predicted(System(system), gbps, cases)) for gbps in cases["predicted_gbps"]
        ]
        for system in cases["systems"]
    }
    draw(dots, predicted, _RESULTS / "crossover.png")


if __name__ == "__main__":
    main()
