"""The matrix of settings that exclude each other, and the reason of each pair."""

from collections import Counter

from docs.tools.fields import definitions, table
from jaxpipe.config.compatibility import EXCLUSIONS

_CROSS = "✗"
_NUM_PAIRS = 2
"""Exclusions from which on a setting has a column of its own."""


def compatibility_reference() -> str:
    """Return a table, setting by setting, and the reason and the way out of each cross.

    Columns have numbers, not names, so that the table fits a narrow window.
    """
    counts = Counter(str(row.first) for row in EXCLUSIONS)
    columns = [name for name, count in counts.items() if count >= _NUM_PAIRS]
    crossed = {(str(row.second), str(row.first)) for row in EXCLUSIONS}
    others = dict.fromkeys(second for second, first in crossed if first in columns)
    rows = [
        (name, *(_CROSS if (name, column) in crossed else "" for column in columns))
        for name in sorted(others)
    ]
    head = ("excluded by", *(str(number + 1) for number in range(len(columns))))
    legend = "\n".join(f"{number + 1}. {name}" for number, name in enumerate(columns))
    return "\n\n".join([legend, table(head, rows), "## Reasons", *_reasons(columns)])


def _reasons(columns: list[str]) -> list[str]:
    """Return a list for each column, and one of the pairs that are in none."""
    groups: dict[str, list[tuple[str, str, str]]] = {name: [] for name in (*columns, "")}
    for row in EXCLUSIONS:
        first = str(row.first)
        has_column = first in columns
        name = str(row.second) if has_column else f"{first} and {row.second}"
        reason = f"{row.why[:1].upper()}{row.why[1:]}; {row.fix}."
        groups[first if has_column else ""].append((name, "", reason))
    return [
        f"### {name or 'Other pairs'}\n\n{definitions(entries)}"
        for name, entries in groups.items()
        if entries
    ]
