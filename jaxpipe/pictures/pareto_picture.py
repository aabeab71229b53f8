"""A picture of a Pareto front: the seconds and the costs of a step of each plan on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxpipe.pictures.canvas import new_figure, plain_text, save
from jaxpipe.pictures.palette import BLUE, LINE, VERMILION


class ParetoPoint(NamedTuple):
    """The seconds of a step of a plan, its cost in a unit, and what stands at its point."""

    seconds: float
    cost: float
    name: str


def draw_front(
    front: Sequence[ParetoPoint],
    chosen_point: ParetoPoint,
    path: Path,
    *,
    title: str,
    unit: str = "dollars",
) -> None:
    """Draw the front as steps, since no plan lies between two of its points, and the chosen plan.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    figure = new_figure(width_in=8.0, height_in=4.5)
    axes = figure.subplots()
    ordered = sorted(front)
    seconds, costs = [point.seconds for point in ordered], [point.cost for point in ordered]
    axes.step(seconds, costs, where="post", color=BLUE, marker="o", linewidth=1.2)
    axes.plot(chosen_point.seconds, chosen_point.cost, color=VERMILION, marker="*", markersize=14)
    for point in ordered:
        axes.annotate(
            plain_text(point.name),
            (point.seconds, point.cost),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set_xlabel("seconds of a step (simulated)")
    axes.set_ylabel(f"{unit} of a step")
    axes.set_title(plain_text(title), loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(0.12)
    save(figure, path)
