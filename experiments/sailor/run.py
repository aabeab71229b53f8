"""Sailor's data: `python -m experiments.sailor.run judge`.

`judge` compares our judge with the published one and fails where a plan differs.
"""

import argparse
import sys
from pathlib import Path

from experiments.sailor.judged import differing, judged_rows
from experiments.table import write_csv

_RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("judge", help="the judge against all published plans")
    options = parser.parse_args()
    match options.command:
        case _:
            return _judge()


def _judge() -> int:
    rows = judged_rows()
    write_csv(rows, _RESULTS / "judged.csv", number=".12g")
    problems = differing(rows)
    print(f"{len(rows) - len(problems)} of {len(rows)} plans are judged as published")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
