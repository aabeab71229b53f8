"""Tables as CSV, and as Markdown."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of the same columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same columns as a table.

    >>> print(markdown([{"dp": 1, "op": 4}]))
    | dp | op |
    | --- | --- |
    | 1 | 4 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[str(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(part: float) -> str:
    """Return a signed percentage.

    >>> percent(-0.0312)
    '-3.1 %'
    """
    return f"{100 * part:+.1f} %"
