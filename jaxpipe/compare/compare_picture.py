"""Plot of a comparison: one panel for each quantity, one bar for each system.

::

    pipeline ████████ 0.9        pipeline █ 2.1          pipeline ████ 410
    ddp      ██████████ 1.1      ddp      ████████ 18    ddp      ██████ 620
             step s                       MiB a step              peak MiB of a rank

The plot needs matplotlib, which the extra `plot` installs.
"""

from collections.abc import Sequence
from pathlib import Path

from jaxpipe.compare.measured import Measured
from jaxpipe.errors import UserError
from jaxpipe.trace import Truth

_MIB = 2**20
_COLORS = {False: "#8fc1ea", True: "#f4b860"}


def draw(all_measured: Sequence[Measured], path: Path, *, truth: Truth) -> None:
    """Draw step time, bytes over slow links and peak memory as a PNG; `truth` is of the links.

    Raises:
        UserError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "matplotlib is not installed, and a plot needs it: run `pip install 'jaxpipe[plot]'`"
        ) from error
    panels = {
        f"step, s ({truth})": [each.step_s for each in all_measured],
        "over slow links, MiB a step\n(orange: counted; blue: measured)": [
            each.slow_bytes / _MIB for each in all_measured
        ],
        "peak memory of a rank, MiB (measured)": [each.peak_bytes / _MIB for each in all_measured],
    }
    names = [each.system.value for each in all_measured]
    # `Figure`, not pyplot: that has a global state, and may look for a display.
    figure = Figure(figsize=(12, 1.6 + 0.4 * len(names)), dpi=100, layout="constrained")
    for number, (label, values) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), number + 1)
        colors = [_COLORS[number == 1 and each.is_counted] for each in all_measured]
        bars = axes.barh(names, values, color=colors)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
        axes.set_xlabel(label)
        # Room for the labels behind the bars.
        axes.margins(x=0.2)
        # `barh` begins at the bottom.
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
