"""Tokens per second and loss over the time of the long run, with what happened to it."""

from collections.abc import Sequence
from math import nan
from pathlib import Path

from experiments.table import Row
from jaxpipe.pictures import new_figure, save
from jaxpipe.pictures.palette import BLUE, DARK, GREY, VERMILION

_PAUSE_S = 4.0
_ROOM = 1.9
"""Of the labels: the height of the axis over the largest rate."""


def draw(steps: Sequence[Row], tokens: Sequence[Row], events: Sequence[Row], path: Path) -> None:
    """Draw tokens per second above and losses below, over the same seconds."""
    figure = new_figure(height_in=6.5)
    above, below = figure.subplots(2, 1, sharex=True)
    seconds = [float(row["seconds"]) for row in tokens]
    rates = [float(row["tokens_per_s"]) for row in tokens]
    above.step([0.0, *seconds], [rates[0], *rates], where="pre", color=BLUE, linewidth=1.2)
    above.set_ylabel("tokens/s (measured)")
    above.set_ylim(0, _ROOM * max(rates))
    for name, colour, style, label in (
        ("undisturbed", VERMILION, "-", "undisturbed run, at the same steps"),
        ("loss", BLUE, "--", "this run"),
    ):
        below.plot(*_with_pauses(steps, name), style, color=colour, label=label)
    below.set_ylabel("training loss, nats per token")
    below.set_xlabel("seconds since the first step")
    end_s = seconds[-1]
    below.set_xlim(0, end_s)
    below.legend(frameon=False)
    for number, row in enumerate(events):
        at_s = float(row["seconds"])
        for axes in (above, below):
            axes.axvline(at_s, color=GREY, linewidth=0.8, zorder=0)
        is_late = at_s > 0.6 * end_s
        above.annotate(
            f" {row['event']} ",
            (at_s, 0.97 - 0.055 * number),
            xycoords=("data", "axes fraction"),
            ha="right" if is_late else "left",
            va="top",
            fontsize=8,
            color=DARK,
        )
    save(figure, path)


def _with_pauses(steps: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """Return seconds and losses, with a gap where no step has ended for a while."""
    seconds: list[float] = []
    losses: list[float] = []
    for row in steps:
        at_s = float(row["seconds"])
        if seconds and at_s - seconds[-1] > _PAUSE_S:
            seconds.append(at_s)
            losses.append(nan)
        seconds.append(at_s)
        losses.append(float(row[name]))
    return seconds, losses
