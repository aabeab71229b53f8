"""A picture of losses: the curve of each run, and its held-out loss, over the steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.pictures.canvas import new_figure, plain_text, save
from jaxpipe.pictures.palette import LINE, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The losses of a run by step, in nats per token; `held_out` has those that were measured."""

    name: str
    losses: Sequence[tuple[int, float]]
    held_out: Sequence[tuple[int, float]] = ()


def draw_losses(curves: Sequence[LossCurve], path: Path, *, title: str) -> None:
    """Draw the curves over each other, and write the picture.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    figure = new_figure(width_in=9.0, height_in=4.5)
    draw_curves(figure.subplots(), curves, title=title)
    save(figure, path)


def draw_curves(axes: "Axes", curves: Sequence[LossCurve], *, title: str) -> None:
    """Draw the curves into a panel: training as a line, held-out losses as points."""
    for number, curve in enumerate(curves):
        color, dashes = series_style(number)
        steps, losses = _columns(curve.losses)
        label = plain_text(curve.name)
        axes.plot(steps, losses, color=color, linestyle=dashes, linewidth=1.2, label=label)
        if curve.held_out:
            label = plain_text(f"{curve.name}, held out")
            axes.plot(
                *_columns(curve.held_out),
                color=color,
                marker="o",
                markeredgecolor="white",
                linestyle=":",
                label=label,
            )
    axes.set_title(plain_text(title), loc="left", fontweight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    if curves:
        axes.legend(frameon=False)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [loss for _, loss in points]
