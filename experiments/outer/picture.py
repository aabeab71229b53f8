"""The gap to sums in every step over H, a line for each number of islands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

_DPI = 100
_TREND_EVERY = 30


def draw(
    gaps: Mapping[tuple[int, int], Sequence[float]],
    trend: Mapping[int, tuple[float, float]],
    path: Path,
) -> None:
    """Draw the gaps of all seeds by (islands, H), and the extrapolated trend as bars at H = 30."""
    figure = Figure(figsize=(7, 4.5), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    for number, islands in enumerate(sorted({key[0] for key in gaps})):
        own = sorted((every, found) for (m, every), found in gaps.items() if m == islands)
        color = f"C{number}"
        axes.plot(
            [every for every, _ in own],
            [100 * mean(found) for _, found in own],
            "o-",
            color=color,
            label=f"{islands} island{'s' * (islands > 1)}, measured",
        )
        for every, found in own:
            axes.plot([every] * len(found), [100 * each for each in found], ".", color=color)
        if islands in trend:
            axes.plot([_TREND_EVERY] * 2, trend[islands], "-", color=color, linewidth=6, alpha=0.4)
    axes.axhline(0, color="#9a9a9a", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("inner steps per outer step, H")
    axes.set_ylabel("gap of the held-out loss, %")
    axes.set_title("bars: trend extrapolated from 35 M parameters and more", loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
