"""The loss curves: codecs between stages on the left, codecs of gradients on the right."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.codecs.curve import Curve

_DPI = 100
_PLAIN = "none"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the held-out loss of every run over the steps."""
    figure = Figure(figsize=(10, 4.5), dpi=_DPI, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [c for c in curves if c.name.startswith((_PLAIN, "boundary"))], "between stages")
    _draw(right, [c for c in curves if c.name.startswith((_PLAIN, "gradients"))], "of gradients")
    left.set_ylabel("held-out loss, nats per token")
    figure.savefig(path)


def _draw(axes: Axes, curves: Sequence[Curve], title: str) -> None:
    for curve in curves:
        steps, losses = zip(*curve.held_out, strict=True)
        is_plain = curve.name.startswith(_PLAIN)
        style = "--" if is_plain else "-"
        color = "black" if curve.name == _PLAIN else "#9a9a9a" if is_plain else None
        axes.plot(steps, losses, style, color=color, label=curve.name, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_title(f"codecs {title}", loc="left")
    axes.legend(frameon=False, fontsize=8)
