"""Rows as CSV, as Markdown, and in groups."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.runtime_benchmark.claim import Row


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows of the same columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a file that `write_csv` wrote; what reads as a number becomes one."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def markdown(rows: Sequence[Row]) -> str:
    """Return rows of the same columns as a table.

    >>> print(markdown([{"case": 1, "seconds": 2.51234}]))
    | case | seconds |
    | --- | --- |
    | 1 | 2.512 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_text(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by what stands in some columns, in the order in which they come.

    >>> grouped([{"a": "x", "n": 1}, {"a": "y", "n": 2}, {"a": "x", "n": 3}], "a")[("x",)]
    [{'a': 'x', 'n': 1}, {'a': 'x', 'n': 3}]
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[column]) for column in columns), []).append(row)
    return groups


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    """Return a column of numbers."""
    return [float(row[column]) for row in rows]


def _text(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _value(text: str) -> str | int | float:
    kinds: tuple[Callable[[str], int | float], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text
