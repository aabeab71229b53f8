"""Sailor's data: `python -m experiments.sailor.run COMMAND`.

`judge` compares our judge with the published one, and fails where a plan differs. `measured`
compares predictions with the measured runs. `predict FILE` takes runs in the form of
`published/validation.csv` and prints a JSON line for each. `plan` searches layouts for all
scenarios, or for those that are named, with the judge and with our simulator as objective. `exact`
tries all layouts on small clusters. `order` simulates the layouts of other planners: some minutes.
`paced` executes the layouts of fig10-40 with real ranks, paced computes and emulated links.
"""

import argparse
import json
import sys
from pathlib import Path

from experiments.sailor.exact import MOST_GPUS, exact_row, small_clusters
from experiments.sailor.judged import differing, judged_rows
from experiments.sailor.measured import measured_table, simulator_table
from experiments.sailor.order import APART, kendall_tau, order_rows, turned_pairs
from experiments.sailor.own import own_row
from experiments.sailor.paced import run_paced
from experiments.sailor.planned import planned_row
from experiments.sailor.predict import fit, measured_rows, predict
from experiments.sailor.published import scenarios
from experiments.table import markdown, read_csv, write_csv

_RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("judge", help="the judge against all published plans")
    commands.add_parser("measured", help="predictions against the measured runs")
    wanted = commands.add_parser("predict", help="seconds and bytes of other runs")
    wanted.add_argument("file", type=Path, help="a CSV in the form of published/validation.csv")
    planner = commands.add_parser("plan", help="layouts for the scenarios")
    planner.add_argument("scenarios", nargs="*", help="all, if none is named")
    small = commands.add_parser("exact", help="exact search on small clusters")
    small.add_argument("--most", type=int, default=MOST_GPUS, help="the most GPUs of a cluster")
    commands.add_parser("order", help="our order of the published layouts against the judge's")
    commands.add_parser("paced", help="layouts of fig10-40 executed, emulated: some minutes")
    options = parser.parse_args()
    plain = {"judge": _judge, "measured": _measured, "order": _order, "paced": _paced}
    match options.command:
        case "predict":
            return _predict(options.file)
        case "exact":
            return _exact(options.most)
        case "plan":
            return _plan(options.scenarios)
        case name:
            return plain[name]()


def _judge() -> int:
    rows = judged_rows()
    write_csv(rows, _RESULTS / "judged.csv", number=".12g")
    problems = differing(rows)
    print(f"{len(rows) - len(problems)} of {len(rows)} plans are judged as published")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _measured() -> int:
    rows = measured_table()
    simulators = simulator_table(rows)
    write_csv(rows, _RESULTS / "measured.csv")
    write_csv(simulators, _RESULTS / "simulators.csv")
    print(markdown(simulators, number=".3f"))
    return 0


def _predict(file: Path) -> int:
    constants = fit(measured_rows())
    for row in read_csv(file):
        found = predict(row, constants)
        line = {
            "id": row["id"],
            "seconds": found.seconds,
            "memory_bytes": round(found.memory_bytes),
        }
        print(json.dumps(line))
    return 0


def _plan(names: list[str]) -> int:
    rows = []
    for name in names or scenarios():
        rows.append({**planned_row(name), **own_row(name)})
        print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    if not names:
        write_csv(rows, _RESULTS / "planned.csv", number=".5g")
    return 0


def _exact(most: int) -> int:
    rows = []
    for counts in small_clusters(most):
        rows.append(exact_row(counts))
        write_csv(rows, _RESULTS / "exact.csv", number=".6g")
        print(counts, rows[-1]["layouts"], f"{rows[-1]['over_exact']:.4f}", flush=True)
    return 0


def _order() -> int:
    rows = order_rows()
    write_csv(rows, _RESULTS / "order.csv", number=".6g")
    for column in ("blocking_s", "judged_links_s", "overlapping_s"):
        every, apart = kendall_tau(rows, column), kendall_tau(rows, column, apart=APART)
        print(f"{column}: tau {every:.3f}, of pairs that are 0.5 % apart {apart:.3f}")
    pairs = [pair for name in ("blocking_s", "judged_links_s") for pair in turned_pairs(rows, name)]
    write_csv(pairs, _RESULTS / "order_pairs.csv", number=".3g")
    print(markdown(pairs, number=".3g"))
    return 0


def _paced() -> int:
    run_paced(_RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
