"""Commands of the comparison: `python -m experiments.compare_group.run COMMAND`.

`plans` searches our plans (minutes of processor time). `simulate` simulates every setting,
`choices` our plans with one choice of DT-FM's at a time, `sizes` all nine published sizes,
`symmetry` slightly uneven computes, and `sharing` trunks between regions, for which it searches
plans as well. `paced` executes the settings with paced compute, `real` trains a small model, and
`tables` writes tables and pictures of the results.
"""

import argparse
from pathlib import Path

from experiments.compare_group.cases import read_cases
from experiments.compare_group.choices import measure_choices
from experiments.compare_group.paced import keep_rows, run_paced, todo
from experiments.compare_group.plans import find
from experiments.compare_group.real import measure
from experiments.compare_group.real_runs import Links
from experiments.compare_group.sharing import measure_sharing
from experiments.compare_group.simulated import measure_symmetry, simulate_all
from experiments.compare_group.sizes import simulate_sizes
from experiments.compare_group.small import read_small
from experiments.compare_group.tables import write_tables
from experiments.compare_group.trunk_plans import search_with_trunks
from experiments.progress import counted
from jaxpipe.simulate import dtfm_constants

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the command."""
    options = _parser().parse_args()
    match options.command:
        case "plans":
            _plans(cpu_s=options.cpu_s, only=options.case)
        case "simulate":
            simulate_all(read_cases(), RESULTS)
        case "choices":
            measure_choices(read_cases(), RESULTS)
        case "sizes":
            simulate_sizes(read_cases(), RESULTS, only=options.case)
        case "symmetry":
            measure_symmetry(read_cases(), RESULTS)
        case "sharing":
            measure_sharing(read_cases(), RESULTS)
            search_with_trunks(read_cases(), RESULTS, cpu_s=options.cpu_s)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    plans = commands.add_parser("plans")
    plans.add_argument("--cpu-s", type=float, default=30.0, help="processor seconds for each case")
    plans.add_argument("--case", action="append", help="a case; default: all")
    commands.add_parser("simulate")
    commands.add_parser("choices")
    sizes = commands.add_parser("sizes")
    sizes.add_argument("--case", action="append", help="a case, only printed; default: all")
    commands.add_parser("symmetry")
    sharing = commands.add_parser("sharing")
    sharing.add_argument("--cpu-s", type=float, default=30.0, help="processor seconds of each")
    paced = commands.add_parser("paced")
    paced.add_argument("--ranks", type=int, default=64)
    paced.add_argument("--seconds", type=float, default=14.0, help="the duration of each step")
    paced.add_argument("--case", action="append", help="a case; default: all")
    paced.add_argument("--resume", action="store_true", help="keep the stored rows")
    paced.add_argument(
        "--late-ms",
        type=float,
        help="with --resume: repeat rows whose messages were later than this on average",
    )
    real = commands.add_parser("real")
    real.add_argument(
        "--links",
        choices=[Links.NAMESPACES.value, Links.SHAPED.value],
        default=Links.NAMESPACES.value,
        help="what emulates links: namespaces, which need root, or the transport",
    )
    real.add_argument("--network", action="append", help="a network; default: all")
    commands.add_parser("tables")
    return parser


def _plans(*, cpu_s: float, only: list[str] | None) -> None:
    cases = read_cases()
    chosen = [case for case in cases.cases if not only or case.name in only]
    for case in counted(chosen, "searched cases"):
        seconds = find(case, cases, dtfm_constants(), folder=RESULTS / "plans", cpu_s=cpu_s)
        print(f"{case.name}: {seconds:.2f} s a step (simulated)", flush=True)


if __name__ == "__main__":
    main()
