"""Tables as CSV, and as Markdown."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str | int | float]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows of the same columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """Return rows of the same columns as a table.

    >>> print(markdown([{"case": 1, "seconds": 2.5}]))
    | case | seconds |
    | --- | --- |
    | 1 | 2.50 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_text(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(part: float) -> str:
    """Return a signed percentage.

    >>> percent(-0.0312)
    '-3.1 %'
    """
    return f"{100 * part:+.1f} %"


def _text(value: str | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
