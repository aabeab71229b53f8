"""Tables of results: write and read CSV, print Markdown, group rows.

A row maps column names to cells. Text stays as it is; a float is formatted by `number`, a format
specification such as `.4g` (four significant digits) or `.2f` (two decimals).
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str | int | float]

NUMBER = ".4g"
"""The default format of floats."""


def write_csv(rows: Sequence[Row], path: Path, *, number: str = NUMBER) -> None:
    """Write rows of equal columns, the first of which names them; make the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_texts(row, number) for row in rows)


def append_csv(row: Row, path: Path, *, number: str = NUMBER) -> None:
    """Append a row to a table; a new file starts with the header, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(_texts(row, number))


def update_csv(rows: Sequence[Row], path: Path, *, key: str, order: Sequence[str]) -> list[Row]:
    """Write rows into a table, in place of those with the same `key`, and return all its rows.

    `order` lists all keys.
    """
    repeated = {row[key] for row in rows}
    earlier = read_csv(path) if path.exists() else []
    kept = [row for row in earlier if row[key] not in repeated]
    merged = sorted((*rows, *kept), key=lambda row: order.index(str(row[key])))
    write_csv(merged, path)
    return merged


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table as text.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_values(path: Path) -> list[Row]:
    """Return the rows of a table; cells that read as numbers become numbers.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return [{name: _value(text) for name, text in row.items()} for row in read_csv(path)]


def markdown(rows: Sequence[Row], *, number: str = NUMBER) -> str:
    """Return rows of equal columns as a Markdown table.

    >>> print(markdown([{"case": 1, "seconds": 2.51234}]))
    | case | seconds |
    | --- | --- |
    | 1 | 2.512 |
    >>> print(markdown([{"case": 1, "seconds": 2.5}], number=".2f").splitlines()[-1])
    | 1 | 2.50 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [list(_texts(row, number).values()) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(part: float) -> str:
    """Return a signed percentage.

    >>> percent(-0.0312)
    '-3.1 %'
    """
    return f"{100 * part:+.1f} %"


def grouped(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by the text of some columns, in order of first appearance.

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


def _texts(row: Row, number: str) -> dict[str, str]:
    return {
        name: format(value, number) if isinstance(value, float) else str(value)
        for name, value in row.items()
    }


def _value(text: str) -> str | int | float:
    kinds: tuple[Callable[[str], int | float], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text
