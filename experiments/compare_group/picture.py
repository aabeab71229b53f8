"""The plots: seconds of every setting on every case, and those of the small model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.compare_group.outcome import Results
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.table import Row

_DPI = 100
_COLORS = {
    Setting.MEGATRON_OPTIMAL: "#8c4f13",
    Setting.MEGATRON_P8: "#3d6fb4",
    Setting.OURS: "#3a9d78",
    Setting.OURS_UNSCHEDULED: "#a8d8c3",
    Setting.DTFM: "#b04a8b",
    Setting.DTFM_UNSCHEDULED: "#e0a9cb",
    Setting.ZERO3: "#7d8597",
}


def draw_settings(results: Results, path: Path) -> None:
    """Draw a bar for what was executed, a line for the simulation, a cross for the publication."""
    figure = Figure(figsize=(12, 5), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(results.cases))
    width = 0.9 / len(Setting)
    for number, (setting, color) in enumerate(_COLORS.items()):
        x = places + (number - (len(Setting) - 1) / 2) * width
        each = [results.of(case, setting) for case in results.cases]
        paced = [one.paced or np.nan for one in each]
        axes.bar(x, paced, width=width, color=color, label=setting.value)
        axes.hlines(
            [one.simulated for one in each], x - width / 2, x + width / 2, color="black", lw=1.2
        )
        axes.plot(x, [one.published or np.nan for one in each], "x", color="red", ms=5)
    axes.set_yscale("log")
    axes.set_xticks(places, results.cases)
    axes.set_ylabel("seconds a step")
    axes.set_title(
        "24 layers, batch 1024. Bars: emulated, paced. Black lines: simulated. Crosses: published.",
        loc="left",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path)


def draw_real(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each network and kind of links, a bar for each setting."""
    panels = list(dict.fromkeys((row["network"], row["links (emulated)"]) for row in rows))
    figure = Figure(figsize=(10, 2.2 * len(panels)), dpi=_DPI, layout="constrained")
    for number, panel in enumerate(panels, 1):
        chosen = [row for row in rows if (row["network"], row["links (emulated)"]) == panel]
        axes = figure.add_subplot(len(panels), 1, number)
        names = [str(row["setting"]) for row in chosen]
        seconds = [float(row["step s (measured)"]) for row in chosen]
        bars = axes.barh(names, seconds, color=[_COLORS[Setting(name)] for name in names])
        axes.bar_label(bars, [f"{value:.2f}" for value in seconds], padding=3)
        axes.set_title(f"{panel[0]}; links emulated by {panel[1]}", loc="left", fontsize=9)
        axes.set_xlabel("seconds a step (measured)", fontsize=8)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
