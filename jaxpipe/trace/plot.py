"""Plot of a step of one or several traces: one band for each rank, grouped by stage.

::

    forward  backward  update  send  waiting to receive  reduce          the legend
    rank 0   │  0  │  1  │      │   0   │   1   │  │    forward, backward, update
             ━━━━━━━━━━━━━                              send
                         ━━━━━━━                        waiting to receive
                                                ━━━━    reduce
             └─────────┴─────────┴─────────┴─────────►  time since the step began, ms

Several traces are drawn one under the other, over the same time. The plot needs matplotlib, which
the extra `plot` installs.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxpipe.errors import UserError
from jaxpipe.pictures import Unit, check_format, new_figure, save, time_unit
from jaxpipe.pictures.canvas import DPI, plain_text
from jaxpipe.pictures.palette import (
    BAND,
    DARK,
    GREEN,
    GREY,
    LIGHT_ORANGE,
    LINE,
    ORANGE,
    PURPLE,
    SKY,
)
from jaxpipe.trace.bands import Bands, bands_of, device_label
from jaxpipe.trace.span import Lane, Span, Trace, rows
from jaxpipe.trace.summary import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """The look of spans."""

    label: str
    color: str


_FORWARD = _Style(label="forward", color=SKY)
_BACKWARD = _Style(label="backward", color=ORANGE)
_BACKWARD_WEIGHT = _Style(label="backward-weight", color=LIGHT_ORANGE)
_OTHER = {
    Lane.UPDATE: _Style(label="update", color=DARK),
    Lane.SEND: _Style(label="send", color=GREEN),
    Lane.RECEIVE: _Style(label="waiting to receive", color=GREY),
    Lane.REDUCE: _Style(label="reduce", color=PURPLE),
}
_COMPUTES = {
    "backward": _BACKWARD,
    "backward-input": _BACKWARD,
    "backward-weight": _BACKWARD_WEIGHT,
}
_STYLES = (_FORWARD, _BACKWARD, _BACKWARD_WEIGHT, *_OTHER.values())

_COMPUTE_STRIP = (0.08, 0.46)
_STRIPS: Final = {
    Lane.COMPUTE: _COMPUTE_STRIP,
    Lane.UPDATE: _COMPUTE_STRIP,
    Lane.SEND: (0.59, 0.11),
    Lane.RECEIVE: (0.71, 0.11),
    Lane.REDUCE: (0.83, 0.11),
}
"""Top and height of each lane in the band of a rank, which reaches from 0 down to 1."""

_FONT_POINTS: Final = 9.0
_NUMBER_POINTS: Final = (9.0, 7.5, 6.0)
_LINE_PX: Final = 1.35 * _FONT_POINTS * DPI / 72
"""The height of a line of text; 72 points are an inch."""
_TALL_PX: Final = 2 * _LINE_PX
"""A band of this height has a label of two lines, and rows for overlapping spans of a lane."""
_FRAMED_PX: Final = (3.0, 6.0)
"""Boxes of this width and height have a white frame, which separates neighbours."""
_NARROW_PX: Final = 1.5
_MANY_BOXES: Final = 4000
"""More of them are pixels even in an SVG or a PDF, which would take megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One step of a trace to draw; of all ranks, or of those that are named."""

    trace: Trace
    step: int
    ranks: tuple[int, ...] | None = None
    heading: str = ""


def plot(trace: Trace, path: Path, *, step: int, ranks: tuple[int, ...] | None = None) -> None:
    """Draw one step of the trace, 1200 pixels wide, as the PNG, SVG or PDF that `path` names.

    Microbatches are numbered where their boxes are wide enough. Overlapping spans of a lane share
    its height. With `ranks`, the others are left out.

    Raises:
        UserError: matplotlib is missing, the format is unknown, or the trace has no such step.
    """
    plot_beside((trace,), path, step=step, ranks=ranks)


def plot_beside(
    traces: Sequence[Trace], path: Path, *, step: int, ranks: tuple[int, ...] | None = None
) -> None:
    """Draw one step of each trace, one under the other; see `plot`.

    Raises:
        UserError: matplotlib is missing, the format is unknown, or a trace has no such step.
    """
    check_format(path)
    panels = [Panel(trace=trace, step=step, ranks=ranks) for trace in traces]
    figure = new_figure(height_in=panels_height_in(panels))
    draw_panels(figure, panels)
    save(figure, path)


def panels_height_in(panels: Sequence[Panel]) -> float:
    """Return the height that panels need under each other, in inches."""
    return 0.5 + sum(0.75 + _row_in(panels) * _bands(panel).height for panel in panels)


def draw_panels(figure: "Figure | SubFigure", panels: Sequence[Panel]) -> None:
    """Draw the panels under each other, over the same time, with one legend above them.

    Raises:
        UserError: a trace has no such step.
    """
    from matplotlib.patches import Patch

    drawn = [_drawn_spans(panel) for panel in panels]
    bands = [_bands(panel) for panel in panels]
    labels = {_style(span).label for spans in drawn for span in spans}
    handles = [
        Patch(facecolor=style.color, label=style.label)
        for style in _STYLES
        if style.label in labels
    ]
    # Outside of the axes, so that it covers no box.
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    heights = [band.height for band in bands]
    grid = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    # All spans of a step, also those of ranks that are not drawn: times of pictures compare.
    seconds = max(_duration_s(panel) for panel in panels)
    unit = time_unit([seconds])
    row_px = _row_in(panels) * DPI
    for axes, panel, rows_of in zip(grid[:, 0], panels, bands, strict=True):
        _frame(axes, panel, rows_of, row_px=row_px)
        # A step of instants, too, needs an axis; the last box does not touch its end.
        axes.set_xlim(0.0, 1.005 * seconds / unit.size or 1.0)
        axes.set_xlabel(f"time since the step began, {unit.name}")
    # Settles the layout: boxes need the width of a second.
    root = figure.get_figure(root=True)
    assert root is not None, figure
    root.draw_without_rendering()
    for axes, panel, rows_of, spans in zip(grid[:, 0], panels, bands, drawn, strict=True):
        start_s = _start_s(panel)
        boxes = list(_boxes(spans, rows_of, start_s=start_s, unit=unit, is_tall=row_px >= _TALL_PX))
        _draw(axes, boxes, row_px=row_px)


def _bands(panel: Panel) -> Bands:
    return bands_of(panel.trace, ranks=panel.ranks)


def _row_in(panels: Sequence[Panel]) -> float:
    """Return the height of a band: 0.85 inches for up to 8 ranks, 0.5 for 16, 0.2 for 64."""
    num_rows = max(len(_bands(panel).tops) for panel in panels)
    return max(0.2, min(0.85, 0.85 * (8 / num_rows) ** 0.7))


def _step_spans(panel: Panel) -> list[Span]:
    spans = [span for span in panel.trace.spans if span.step == panel.step]
    if not spans:
        steps = sorted({span.step for span in panel.trace.spans})
        raise UserError(f"`step` must be one of the trace's, not {panel.step}; choose from {steps}")
    return spans


def _drawn_spans(panel: Panel) -> list[Span]:
    spans = _step_spans(panel)
    return spans if panel.ranks is None else [s for s in spans if s.rank in set(panel.ranks)]


def _start_s(panel: Panel) -> float:
    return min(span.start_s for span in _step_spans(panel))


def _duration_s(panel: Panel) -> float:
    return max(span.end_s for span in _step_spans(panel)) - _start_s(panel)


def _style(span: Span) -> _Style:
    if span.lane is not Lane.COMPUTE:
        return _OTHER[span.lane]
    return _COMPUTES.get(span.name, _FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A drawn span: x in units of the axis since the step began, y in bands."""

    left: float
    width: float
    top: float
    height: float
    color: str
    number: str


def _boxes(
    spans: list[Span], bands: Bands, *, start_s: float, unit: Unit, is_tall: bool
) -> Iterator[_Box]:
    strips: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in spans:
        strips[span.rank, span.lane].append(span)
    for (rank, lane), members in strips.items():
        # In a low band overlapping spans lie over each other: rows would be thinner than a pixel.
        placed = rows(members) if is_tall else (0,) * len(members)
        top, strip = _STRIPS[lane]
        height = strip / (max(placed) + 1)
        for span, row in zip(members, placed, strict=True):
            is_numbered = lane is Lane.COMPUTE and span.microbatch is not None
            yield _Box(
                left=(span.start_s - start_s) / unit.size,
                width=(span.end_s - span.start_s) / unit.size,
                top=bands.tops[rank] + top + row * height,
                height=height,
                color=_style(span).color,
                number=str(span.microbatch) if is_numbered else "",
            )


def _frame(axes: "Axes", panel: Panel, bands: Bands, *, row_px: float) -> None:
    axes.set_title(plain_text(_title(panel)), loc="left", fontweight="bold")
    axes.set_ylim(bands.height, 0.0)  # the first row on top
    is_tall = row_px >= _TALL_PX
    labels = [
        f"{bands.labels[rank]}{_LABEL_BREAK[is_tall]}{device_label(panel.trace, rank)}"
        for rank in bands.tops
    ]
    font_points = min(_FONT_POINTS, _FONT_POINTS * row_px / _LINE_PX)
    axes.set_yticks(
        [top + (0.31 if is_tall else 0.5) for top in bands.tops.values()],
        labels,
        fontsize=font_points,
        parse_math=False,  # a `$` in a name begins no formula
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for top in [*bands.tops.values()][::2]:
        axes.axhspan(top, top + 1, color=BAND, zorder=0)
    if bands.groups:
        longest = max(len(line) for label in labels for line in label.split("\n"))
        pad_points = _CHARACTER * font_points * longest + 10
        _group_labels(axes, bands, row_px=row_px, pad_points=pad_points)


_LABEL_BREAK = {True: "\n", False: "  "}
_CHARACTER: Final = 0.62
"""The mean width of a character, in its size."""


def _group_labels(axes: "Axes", bands: Bands, *, row_px: float, pad_points: float) -> None:
    """Write the name of each group to the left of its rows, and lines between the groups."""
    width_px = _CHARACTER * _FONT_POINTS * DPI / 72 * max(len(g.label) for g in bands.groups)
    is_upright = all((g.bottom - g.top) * row_px > width_px for g in bands.groups)
    # A second axis of the same rows: its labels have room of their own in the layout.
    outer = axes.secondary_yaxis("left")
    outer.set_yticks(
        [(group.top + group.bottom) / 2 for group in bands.groups],
        [group.label for group in bands.groups],
        fontsize=_FONT_POINTS,
        fontweight="bold",
        rotation=90 if is_upright else 0,
        va="center",
    )
    outer.tick_params(axis="y", length=0, pad=pad_points)
    outer.spines[:].set_visible(False)
    for before, after in zip(bands.groups, bands.groups[1:], strict=False):
        axes.axhline((before.bottom + after.top) / 2, color=GREY, linewidth=0.8)


def _title(panel: Panel) -> str:
    trace, step = panel.trace, panel.step
    bubble = next(summary.bubble for summary in summarise(trace) if summary.step == step)
    title = [panel.heading] if panel.heading else []
    title += [f"step {step}", trace.label]
    if bubble is not None:
        title.append(f"bubble {100 * bubble:.1f} %")
    if panel.ranks is not None and len(panel.ranks) < len(trace.rank_names):
        title.append(f"{len(panel.ranks)} of {len(trace.rank_names)} ranks")
    return " · ".join(title)


def _draw(axes: "Axes", boxes: Sequence[_Box], *, row_px: float) -> None:
    """Draw all boxes at once, which takes a tenth of the time of one patch for each."""
    from matplotlib.collections import PolyCollection

    (left_px, _), (right_px, _) = axes.transData.transform([(0.0, 0.0), (1.0, 0.0)])
    px_each = right_px - left_px
    axes.add_collection(
        PolyCollection(
            [_corners(box) for box in boxes],
            facecolors=[box.color for box in boxes],
            edgecolors=[
                _edge(box, box.width * px_each, height_px=box.height * row_px) for box in boxes
            ],
            linewidths=0.5,
            rasterized=len(boxes) > _MANY_BOXES,
        )
    )
    for box in boxes:
        font_points = _number_points(box, box.width * px_each, height_px=box.height * row_px)
        if font_points is not None:
            axes.text(
                box.left + box.width / 2,
                box.top + box.height / 2,
                box.number,
                ha="center",
                va="center",
                fontsize=font_points,
            )


def _number_points(box: _Box, width_px: float, *, height_px: float) -> float | None:
    """Return the size in which the number of a box fits into it; None if it has none that does."""
    if not box.number:
        return None
    for points in _NUMBER_POINTS:
        size_px = points * DPI / 72
        # A digit is 0.7 of the size; low boxes of many ranks would be full of them.
        if height_px >= 1.2 * size_px and width_px >= 0.7 * size_px * len(box.number):
            return points
    return None


def _edge(box: _Box, width_px: float, *, height_px: float) -> str:
    """Return the colour of a frame, which would hide a box that is hardly larger than itself."""
    if width_px > _FRAMED_PX[0] and height_px > _FRAMED_PX[1]:
        return "white"
    # Else a box narrower than a pixel would fade away.
    return box.color if width_px < _NARROW_PX else "none"


def _corners(box: _Box) -> list[tuple[float, float]]:
    right, bottom = box.left + box.width, box.top + box.height
    return [(box.left, box.top), (right, box.top), (right, bottom), (box.left, bottom)]
