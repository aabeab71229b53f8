"""Pictures: bars at the median with a dot for each measurement, and lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

_DPI = 100
_COLORS = ("#3d6fb4", "#d98324", "#3a9d78", "#b04a8b", "#7d8597", "#8c4f13", "#8fc1ea", "#f4b860")


def bars(
    measured: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    unit: str,
    aim: float | None = None,
) -> None:
    """Draw a bar for each name; a dashed line shows the aim."""
    figure = Figure(figsize=(max(6.0, 1.1 * len(measured)), 4), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    for number, (name, values) in enumerate(measured.items()):
        color = _COLORS[number % len(_COLORS)]
        axes.bar(number, median(values), width=0.6, color=color, alpha=0.6, label=name)
        axes.scatter([number] * len(values), list(values), s=10, color=color)
    if aim is not None:
        axes.axhline(aim, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(measured)), list(measured), fontsize=8)
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize=9)
    figure.savefig(path)


def lines(
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    *,
    title: str,
    labels: tuple[str, str],
) -> None:
    """Draw a line for each name through its points, x and y, both logarithmic."""
    figure = Figure(figsize=(7, 4.5), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    for number, (name, (x, y)) in enumerate(measured.items()):
        color = _COLORS[number % len(_COLORS)]
        axes.plot(list(x), list(y), color=color, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axes.set_title(title, loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
