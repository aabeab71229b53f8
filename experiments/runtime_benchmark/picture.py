"""Pictures of raw rows: bars at the median with a dot per measurement, and lines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.table import Row, grouped, numbers

Draw = Callable[[Sequence[Row], Path], None]
"""Draw the raw rows of a claim into a file."""

_DPI = 100
_COLORS = ("#3d6fb4", "#d98324", "#3a9d78", "#b04a8b", "#7d8597", "#8c4f13", "#8fc1ea", "#f4b860")


def bars(
    *by: str,
    value: str,
    title: str,
    aim: float | str | None = None,
    only: Mapping[str, str] | None = None,
) -> Draw:
    """Return a picture of the column `value`, with a bar per combination of the columns `by`.

    A dashed line shows the `aim`, a number or the name of a column. `only` selects rows by the text
    of their columns; rows without a value are left out.
    """

    def draw(raw: Sequence[Row], path: Path) -> None:
        rows = [
            row
            for row in raw
            if row[value] != ""
            and all(str(row[name]) == text for name, text in (only or {}).items())
        ]
        groups = grouped(rows, *by)
        figure = _figure(max(6.0, 1.1 * len(groups)), 4)
        axes = figure.add_subplot()
        for number, group in enumerate(groups.values()):
            values, color = numbers(group, value), _COLORS[number % len(_COLORS)]
            axes.bar(number, median(values), width=0.6, color=color, alpha=0.6)
            axes.scatter([number] * len(values), values, s=10, color=color)
        if aim is not None:
            height = float(rows[0][aim]) if isinstance(aim, str) else aim
            axes.axhline(height, color="black", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(groups)), ["\n".join(key) for key in groups], fontsize=8)
        axes.set_ylabel(value)
        axes.set_title(title, loc="left", fontsize=9)
        figure.savefig(path)

    return draw


def lines(
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    *,
    title: str,
    labels: tuple[str, str],
) -> None:
    """Draw a line per name through its points, x and y, on logarithmic axes."""
    figure = _figure(7, 4.5)
    axes = figure.add_subplot()
    for number, (name, (x, y)) in enumerate(measured.items()):
        color = _COLORS[number % len(_COLORS)]
        axes.plot(list(x), list(y), color=color, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axes.set_title(title, loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def _figure(width: float, height: float) -> Any:
    """Return an empty figure, of inches; a machine that only measures needs no matplotlib."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
