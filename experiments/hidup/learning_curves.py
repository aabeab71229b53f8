"""Curves of what `learn` measured: losses of the pipeline and of the SPMD program, accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from jaxpipe.pictures.palette import BLUE, ORANGE, VERMILION

_LINES = (
    ("training loss", BLUE, "-", "training, pipeline"),
    ("training loss, SPMD", ORANGE, "--", "training, SPMD"),
    ("held-out loss", VERMILION, "-", "held out, pipeline"),
)


def draw_curves(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Draw a column for each model: losses above, accuracy below."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    canvas, panels = plt.subplots(
        2, len(models), figsize=(4 * len(models), 5), squeeze=False, constrained_layout=True
    )
    for column, model in enumerate(models):
        own = [row for row in rows if row["model"] == model]
        steps = [int(row["step"]) for row in own]
        for name, colour, style, label in _LINES:
            values = [float(row[name]) for row in own]
            panels[0][column].plot(steps, values, style, color=colour, label=label)
        panels[0][column].set_title(model)
        accuracies = [row["held-out accuracy"] for row in own]
        if all(accuracies):
            values = [float(each.rstrip("%")) for each in accuracies]
            panels[1][column].plot(steps, values, "o-", color=VERMILION)
            panels[1][column].set_ylim(0, 100)
        else:
            panels[1][column].set_axis_off()
        panels[1][column].set_xlabel("step")
    panels[0][0].set_ylabel("loss, nats")
    panels[0][0].legend(fontsize=8)
    panels[1][0].set_ylabel("held-out accuracy, %")
    canvas.savefig(path, dpi=110)
    plt.close(canvas)
