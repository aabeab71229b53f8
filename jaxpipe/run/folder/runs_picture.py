"""A picture of several runs: their losses over each other, and below them a step of each.

::

    loss │╲__ a ──              one curve for each run
         │   ╲___ b - -
         └────────────► step
    a · step 600 · measured     the last step in the trace of each run that has one,
    b · step 600 · measured     all over the same time
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jaxpipe.errors import UserError
from jaxpipe.pictures import check_format, new_figure, save
from jaxpipe.pictures.loss_picture import LossCurve, draw_curves
from jaxpipe.run.folder.list_runs import RunSummary
from jaxpipe.runtime.metrics.records import TRACE_FILE
from jaxpipe.trace import Panel, draw_panels, panels_height_in, read_chrome

logger = logging.getLogger(__name__)

_MOST_TIMELINES: Final = 4
_LOSSES_IN: Final = 4.0


def draw_runs(runs: Sequence[RunSummary], path: Path) -> None:
    """Draw the losses of runs, and for up to four of them the last traced step.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    check_format(path)
    curves = [
        LossCurve(name=str(run.folder), losses=run.losses, held_out=run.held_out) for run in runs
    ]
    panels = [] if len(runs) > _MOST_TIMELINES else list(filter(None, map(_panel, runs)))
    if not panels:
        figure = new_figure(height_in=1.2 * _LOSSES_IN)
        draw_curves(figure.subplots(), curves, title=_TITLE)
    else:
        heights = [_LOSSES_IN, panels_height_in(panels)]
        figure = new_figure(height_in=sum(heights))
        above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
        draw_curves(above.subplots(), curves, title=_TITLE)
        draw_panels(below, panels)
    save(figure, path)


_TITLE: Final = "loss of training (lines) and of held-out tokens (points)"


def _panel(run: RunSummary) -> Panel | None:
    """Return the last traced step of a run; None if it has none, or an unreadable trace."""
    file = run.folder / TRACE_FILE
    if not file.exists():
        return None
    try:
        trace = read_chrome(file)
    except UserError as error:
        logger.warning("the picture is without a timeline of %s: %s", run.folder, error)
        return None
    steps = {span.step for span in trace.spans}
    return Panel(trace=trace, step=max(steps), heading=str(run.folder)) if steps else None
