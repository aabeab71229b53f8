"""A picture of losses: the curve of each run, and its held-out loss, over the steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The losses of a run by step, in nats per token; `held_out` has those that were measured."""

    name: str
    losses: Sequence[tuple[int, float]]
    held_out: Sequence[tuple[int, float]] = ()


def draw_losses(curves: Sequence[LossCurve], path: Path, *, title: str) -> None:
    """Draw the curves over each other, and write the picture.

    Raises:
        UserError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "matplotlib is not installed, and a plot needs it: run `pip install 'jaxpipe[plot]'`"
        ) from error
    figure = Figure(figsize=(9.0, 4.5), dpi=100, layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        color = f"C{number}"
        axes.plot(*_columns(curve.losses), color=color, linewidth=1.0, label=_plain(curve.name))
        if curve.held_out:
            label = _plain(f"{curve.name}, held out")
            axes.plot(*_columns(curve.held_out), color=color, marker="o", ls=":", label=label)
    axes.set_title(_plain(title), loc="left")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.grid(color="#e6e7ec", linewidth=0.8)
    if curves:
        axes.legend(frameon=False)
    figure.savefig(path)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [loss for _, loss in points]


def _plain(text: str) -> str:
    r"""Return a text that matplotlib does not read as mathematics.

    >>> _plain("runs/$1")
    'runs/\\$1'
    """
    return text.replace("$", r"\$")
