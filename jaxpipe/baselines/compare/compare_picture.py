"""Plot of a comparison: one panel for each quantity, one bar for each system.

::

    pipeline ████████ 0.9        pipeline █ 2.1          pipeline ████ 410
    ddp      ██████████ 1.1      ddp      ████████ 18    ddp      ██████ 620
             step, s                      MiB a step              peak MiB of a rank

The plot needs matplotlib, which the extra `plot` installs.
"""

from collections.abc import Sequence
from pathlib import Path

from jaxpipe.baselines.compare.measured import MeasuredSystem
from jaxpipe.pictures import new_figure, plain_number, save, unit_for
from jaxpipe.pictures.axis_units import BYTES, SECONDS
from jaxpipe.pictures.palette import ORANGE, SKY
from jaxpipe.trace import Truth


def draw(all_measured: Sequence[MeasuredSystem], path: Path, *, truth: Truth) -> None:
    """Draw step time, bytes over slow links and peak memory, each in one unit.

    `truth` is that of the links.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    panels = (
        (
            f"time of a step, {{}} ({truth})",
            [measured.step_s for measured in all_measured],
            SECONDS,
        ),
        (
            "over slow links, {} a step\n(orange: counted; blue: measured)",
            [measured.slow_bytes for measured in all_measured],
            BYTES,
        ),
        (
            "peak memory of a rank, {} (measured)",
            [measured.peak_bytes for measured in all_measured],
            BYTES,
        ),
    )
    names = [measured.system.value for measured in all_measured]
    figure = new_figure(height_in=1.6 + 0.4 * len(names))
    for number, (axes, (label, values, units)) in enumerate(
        zip(figure.subplots(1, len(panels)), panels, strict=True)
    ):
        unit = unit_for(values, units)
        shown = [value / unit.size for value in values]
        colors = [
            ORANGE if number == 1 and measured.is_counted else SKY for measured in all_measured
        ]
        bars = axes.barh(names, shown, color=colors)
        axes.bar_label(bars, [plain_number(value) for value in shown], padding=3)
        axes.set_xlabel(label.format(unit.name))
        # Room for the labels behind the bars.
        axes.margins(x=0.2)
        # `barh` begins at the bottom.
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
