"""Ceilings for habits of the code, for each package: they only go down.

A test fails when a package has more of a habit than its ceiling. `python -m docs.tools.ceilings`
writes today's numbers into `ceilings.toml`; it refuses to raise the total of a habit, so code may
move from package to package, and new code may not add to it.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from docs.tools.habits import Instances, instances

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("ceilings.toml")
COMMAND = "python -m docs.tools.ceilings"

Counts = Mapping[str, Mapping[str, int]]
"""How often a package has a habit: by habit, then by package."""


def main() -> int:
    """Write today's numbers as ceilings; return 1 if the total of a habit would rise."""
    counts, ceilings = count(instances(ROOT)), read_ceilings()
    if rises := raised_totals(counts, ceilings):
        print("\n".join(rises), file=sys.stderr)
        return 1
    print("\n".join(loose(counts, ceilings)) or "no ceiling is above its number")
    FILE.write_text(ceilings_text(counts))
    return 0


def count(library: Instances) -> Counts:
    """Return how often each package has each habit; packages without one are left out."""
    return {
        habit: dict(sorted(Counter(instance.package for instance in of_habit).items()))
        for habit, of_habit in library.items()
    }


def read_ceilings() -> Counts:
    """Return the committed ceilings."""
    return tomllib.loads(FILE.read_text()) if FILE.exists() else {}


def exceeded(counts: Counts, ceilings: Counts) -> tuple[tuple[str, str], ...]:
    """Return the habits and packages whose number is above its ceiling.

    >>> exceeded({"pronouns": {"plan": 3, "topo": 1}}, {"pronouns": {"plan": 2, "topo": 4}})
    (('pronouns', 'plan'),)
    """
    return tuple(
        (habit, package)
        for habit, by_package in counts.items()
        for package, number in by_package.items()
        if number > ceilings.get(habit, {}).get(package, 0)
    )


def loose(counts: Counts, ceilings: Counts) -> tuple[str, ...]:
    """Return a line for each ceiling that is above its number.

    >>> loose({"pronouns": {"plan": 3}}, {"pronouns": {"plan": 4, "topo": 1}})
    ('`pronouns` of plan: ceiling 4, now 3', '`pronouns` of topo: ceiling 1, now 0')
    """
    return tuple(
        f"`{habit}` of {package}: ceiling {limit}, now {number}"
        for habit, by_package in ceilings.items()
        for package, limit in by_package.items()
        if limit > (number := counts.get(habit, {}).get(package, 0))
    )


def raised_totals(counts: Counts, ceilings: Counts) -> tuple[str, ...]:
    """Return a line for each habit of which all packages together have more than their ceilings.

    >>> raised_totals({"pronouns": {"plan": 3}}, {"pronouns": {"plan": 1, "topo": 2}})
    ()
    >>> raised_totals({"pronouns": {"plan": 3}}, {"pronouns": {"plan": 1}})
    ('`pronouns` may be 1 in all packages together, not 3: remove 2',)
    """
    lines = []
    for habit, by_package in counts.items():
        total = sum(by_package.values())
        if habit in ceilings and total > (limit := sum(ceilings[habit].values())):
            lines.append(
                f"`{habit}` may be {limit} in all packages together, not {total}: "
                f"remove {total - limit}"
            )
    return tuple(lines)


def ceilings_text(counts: Counts) -> str:
    """Return the table of ceilings as TOML."""
    parts = [
        "# How often each package has a habit that `docs/tools/habits.py` lists; the numbers only",
        f"# go down. Written by `{COMMAND}`.",
    ]
    for habit, by_package in counts.items():
        rows = [f"{package} = {number}" for package, number in by_package.items()]
        parts.append("\n".join(["", f"[{habit}]", *rows]))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
