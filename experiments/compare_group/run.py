"""The comparison's commands: `python -m experiments.compare_group.run COMMAND`.

`plans` searches our plans (minutes of processor time), `simulate` simulates every setting,
`symmetry` simulates them with computes that are a little uneven, `paced` executes them with paced
compute, `real` trains a small model, and `tables` writes tables and plots from what is in
`results/`.
"""

import argparse
from pathlib import Path

from experiments.compare_group.cases import read_cases
from experiments.compare_group.paced import keep_rows, run_paced, todo
from experiments.compare_group.plans import find
from experiments.compare_group.real import measure
from experiments.compare_group.real_runs import Links
from experiments.compare_group.simulated import simulate_all
from experiments.compare_group.small import read_small
from experiments.compare_group.symmetry import measure_symmetry
from experiments.compare_group.tables import write_tables
from jaxpipe.simulate import dtfm_constants

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    plans = commands.add_parser("plans")
    plans.add_argument("--cpu-s", type=float, default=30.0, help="processor seconds for each case")
    commands.add_parser("simulate")
    commands.add_parser("symmetry")
    paced = commands.add_parser("paced")
    paced.add_argument("--ranks", type=int, default=64)
    paced.add_argument("--seconds", type=float, default=14.0, help="what each step shall take")
    paced.add_argument("--case", action="append", help="one of the cases alone; all if left out")
    paced.add_argument("--resume", action="store_true", help="keep the rows that are there")
    paced.add_argument(
        "--late-ms",
        type=float,
        help="with --resume: redo rows whose messages were later on average",
    )
    real = commands.add_parser("real")
    real.add_argument(
        "--links",
        choices=[Links.NAMESPACES.value, Links.SHAPED.value],
        default=Links.NAMESPACES.value,
        help="what emulates links: namespaces, which take root, or the transport",
    )
    real.add_argument("--network", action="append", help="one of them alone; all if left out")
    commands.add_parser("tables")
    options = parser.parse_args()
    match options.command:
        case "plans":
            _plans(cpu_s=options.cpu_s)
        case "simulate":
            simulate_all(read_cases(), RESULTS)
        case "symmetry":
            measure_symmetry(read_cases(), RESULTS)
        case "paced":
            keep_rows(RESULTS, resume=options.resume, late_ms=options.late_ms)
            run_paced(
                todo(read_cases(), RESULTS, only=options.case),
                RESULTS,
                num_ranks=options.ranks,
                seconds=options.seconds,
            )
            write_tables(RESULTS)
        case "real":
            links = Links(options.links)
            measure(read_small(), RESULTS, links=links, only=options.network)
            write_tables(RESULTS)
        case "tables":
            write_tables(RESULTS)


def _plans(*, cpu_s: float) -> None:
    cases = read_cases()
    for case in cases.cases:
        seconds = find(case, cases, dtfm_constants(), folder=RESULTS / "plans", cpu_s=cpu_s)
        print(f"{case.name}: {seconds:.2f} s a step (simulated)", flush=True)


if __name__ == "__main__":
    main()
