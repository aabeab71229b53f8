"""Results as CSV for programs, and as Markdown for readers."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str | int | float]


def write(rows: Sequence[Row], path: Path) -> None:
    """Write rows, all with the same keys, as `path`.csv and `path`.md."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _text(cell) for key, cell in row.items()} for row in rows)
    path.with_suffix(".md").write_text(markdown(rows))


def markdown(rows: Sequence[Row]) -> str:
    """Return a table.

    >>> print(markdown([{"case": 1, "cost": 3.43979}]), end="")
    | case | cost |
    | --- | --- |
    | 1 | 3.4398 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_text(cell) for cell in row.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: str | float) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
