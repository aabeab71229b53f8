"""Pictures of figures 6 to 8: published bars as outlines, predicted ones filled."""

from pathlib import Path

import matplotlib

from experiments.hidup.accuracy import Seconds
from experiments.hidup.workloads import MODELS, Bar
from jaxpipe.baselines.systems import System

matplotlib.use("Agg")

import matplotlib.pyplot as plt

_COLOURS = {
    System.HIDUP: "#3b6fb6",
    System.DEEPSPEED_MOE: "#d98032",
    System.FASTMOE: "#4f9d69",
    System.HOROVOD: "#8a6bb1",
    System.DDP: "#888888",
}


def draw_figure(figure: int, ours: Seconds, theirs: Seconds, path: Path) -> None:
    """Draw one figure, a panel for each model."""
    conditions = list(dict.fromkeys(bar.condition for bar in ours if bar.figure == figure))
    systems = [
        each for each in _COLOURS if any(b.system is each and b.figure == figure for b in ours)
    ]
    canvas, panels = plt.subplots(1, len(MODELS), figsize=(13, 3.2), constrained_layout=True)
    width = 0.8 / len(systems)
    for panel, model in zip(panels, MODELS, strict=True):
        for place, system in enumerate(systems):
            at = [number + place * width - 0.4 + width / 2 for number in range(len(conditions))]
            keys = [
                Bar(figure=figure, condition=each, model=model, system=system)
                for each in conditions
            ]
            panel.bar(at, [ours[key] for key in keys], width, color=_COLOURS[system], label=system)
            known = [(x, theirs[key]) for x, key in zip(at, keys, strict=True) if key in theirs]
            panel.scatter(*zip(*known, strict=True), marker="_", color="black", s=60, zorder=3)
        panel.set_xticks(range(len(conditions)), conditions)
        panel.set_title(model)
    panels[0].set_ylabel("s per step")
    panels[-1].legend(fontsize=8)
    canvas.suptitle(f"Figure {figure}: simulated (bars) and published (black marks)")
    canvas.savefig(path, dpi=110)
    plt.close(canvas)
