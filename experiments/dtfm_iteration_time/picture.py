"""Two plots: published against simulated times, and the speedup of our plans over DT-FM."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.dtfm_iteration_time.ours import Comparison
from experiments.dtfm_iteration_time.published import Cell

_DPI = 100
_COLORS = {
    "dtfm_scheduled": "#3a9d78",
    "dtfm_unscheduled": "#b04a8b",
    "megatron_p8": "#3d6fb4",
    "megatron_p8_unscheduled": "#8fc1ea",
    "megatron_t8": "#f4b860",
    "megatron_p4t2": "#d98324",
    "megatron_p2t4": "#8c4f13",
    "zero_s3": "#7d8597",
}


def draw_theirs(measured: Sequence[Cell], simulated: np.ndarray, path: Path) -> None:
    """Draw a point per published cell; on the diagonal the simulation is exact."""
    figure = Figure(figsize=(7, 6), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    for system, color in _COLORS.items():
        chosen = [i for i, cell in enumerate(measured) if cell.system == system]
        published = [measured[i].seconds for i in chosen]
        axes.scatter(published, simulated[chosen], s=14, color=color, label=system)
    ends = np.array([8.0, 1500.0])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for off in (0.9, 1.1):
        axes.plot(ends, off * ends, color="black", linewidth=0.5, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="published, s", ylabel="simulated, s")
    axes.set_title("Iteration time, cases 1 to 3; dotted: 10 % off", loc="left")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw_ours(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw the speedup of our plan by cluster, with a bar per size."""
    figure = Figure(figsize=(9, 4), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    clusters = list(dict.fromkeys(each.cluster for each in comparisons))
    for number, cluster in enumerate(clusters):
        speedups = [each.dtfm_s / each.ours_s for each in comparisons if each.cluster == cluster]
        places = number + np.linspace(-0.38, 0.38, len(speedups))
        axes.bar(places, speedups, width=0.08, color=_COLORS["dtfm_scheduled"])
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(clusters)), clusters, fontsize=8)
    axes.set_ylabel("DT-FM's time / ours")
    axes.set_title(
        "jaxpipe's plan and DT-FM with its scheduler, both simulated (24, 32, 40 layers; batch "
        "1024, 2048, 4096)",
        loc="left",
        fontsize=9,
    )
    figure.savefig(path)
