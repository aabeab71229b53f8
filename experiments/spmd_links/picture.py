"""Step time over the rate of the link: dots measured on emulated links, lines predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

_DPI = 100
Curve = Sequence[tuple[float, float]]


def draw(dots: Mapping[str, Curve], predicted: Mapping[str, Curve], path: Path) -> None:
    """Draw a colour per system; points are Gbps and seconds."""
    figure = Figure(figsize=(8, 5), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    for system, curve in predicted.items():
        (line,) = axes.plot(*zip(*curve, strict=True), linewidth=1.2, label=f"{system}, predicted")
        points = dots[system]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=line.get_color(), label=system)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rate of the link, Gbps (shaped by the kernel: emulated)")
    axes.set_ylabel("step, s")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
