"""Plot of a step of one or several traces: one band for each rank.

::

    rank 0   │  0  │  1  │      │   0   │   1   │  │    forward, backward, update
             ━━━━━━━━━━━━━                              send
                         ━━━━━━━                        waiting to receive
                                                ━━━━    reduce
             └─────────┴─────────┴─────────┴─────────►  seconds since the step began

Several traces are drawn one under the other, over the same seconds. The plot needs matplotlib,
which the extra `plot` installs.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import UserError, printable
from jaxpipe.trace.span import Lane, Span, Trace, rows
from jaxpipe.trace.summary import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """The look of spans, and their strip of the band of a rank, which reaches from 0 down to 1."""

    label: str
    top: float
    height: float
    color: str


_FORWARD = _Style(label="forward", top=0.08, height=0.46, color="#8fc1ea")
_BACKWARD = _Style(label="backward", top=0.08, height=0.46, color="#f4b860")
_BACKWARD_WEIGHT = _Style(label="backward-weight", top=0.08, height=0.46, color="#f9dfb3")
_OTHER = {
    Lane.UPDATE: _Style(label="update", top=0.08, height=0.46, color="#7d8597"),
    Lane.SEND: _Style(label="send", top=0.59, height=0.11, color="#3a9d78"),
    Lane.RECEIVE: _Style(label="waiting to receive", top=0.71, height=0.11, color="#c3c6d1"),
    Lane.REDUCE: _Style(label="reduce", top=0.83, height=0.11, color="#b04a8b"),
}
_COMPUTES = {
    "backward": _BACKWARD,
    "backward-input": _BACKWARD,
    "backward-weight": _BACKWARD_WEIGHT,
}
_STYLES = (_FORWARD, _BACKWARD, _BACKWARD_WEIGHT, *_OTHER.values())

_DPI = 100
_WIDTH_IN = 12.0
_FONT_POINTS = 9.0


def plot(trace: Trace, path: Path, *, step: int) -> None:
    """Draw one step of the trace as a PNG, 1200 pixels wide, at `path`.

    Microbatches are numbered where their boxes are wide enough. Overlapping spans of a lane share
    its height.

    Raises:
        UserError: matplotlib is missing, or the trace has no such step.
    """
    plot_beside((trace,), path, step=step)


def plot_beside(traces: Sequence[Trace], path: Path, *, step: int) -> None:
    """Draw one step of each trace, one under the other, as a PNG at `path`; see `plot`.

    Raises:
        UserError: matplotlib is missing, or a trace has no such step.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.patches import Patch
    except ImportError as error:
        raise UserError(
            "matplotlib is not installed, and a plot needs it: run `pip install 'jaxpipe[plot]'`"
        ) from error
    drawn = [_drawn_spans(trace, step=step) for trace in traces]
    labels = {_style(span).label for spans in drawn for span in spans}
    handles = [
        Patch(facecolor=style.color, label=style.label)
        for style in _STYLES
        if style.label in labels
    ]
    num_ranks = [len(trace.rank_names) for trace in traces]
    height_in = 0.6 + sum(0.7 + 0.85 * number for number in num_ranks)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout=layout)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    grid = figure.subplots(len(traces), 1, height_ratios=num_ranks, squeeze=False)
    seconds = max(max(s.end_s for s in spans) - _start_s(spans) for spans in drawn)
    for axes, trace in zip(grid[:, 0], traces, strict=True):
        _frame(axes, trace, step=step, seconds=seconds)
    figure.draw_without_rendering()  # settles the layout: boxes need the width of a second
    for axes, spans in zip(grid[:, 0], drawn, strict=True):
        for box in _boxes(spans, start_s=_start_s(spans)):
            _draw(axes, box)
    figure.savefig(path)


def _drawn_spans(trace: Trace, *, step: int) -> list[Span]:
    spans = [span for span in trace.spans if span.step == step]
    if not spans:
        steps = sorted({span.step for span in trace.spans})
        raise UserError(f"`step` must be one of the trace's, not {step}; choose from {steps}")
    return spans


def _start_s(spans: list[Span]) -> float:
    return min(span.start_s for span in spans)


def _style(span: Span) -> _Style:
    if span.lane is not Lane.COMPUTE:
        return _OTHER[span.lane]
    return _COMPUTES.get(span.name, _FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A drawn span: x in seconds since the step began, y in bands."""

    left_s: float
    width_s: float
    top: float
    height: float
    color: str
    number: str


def _boxes(spans: list[Span], *, start_s: float) -> Iterator[_Box]:
    strips: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in spans:
        strips[span.rank, span.lane].append(span)
    for (rank, lane), members in strips.items():
        placed = rows(members)
        for span, row in zip(members, placed, strict=True):
            style = _style(span)
            height = style.height / (max(placed) + 1)
            is_numbered = lane is Lane.COMPUTE and span.microbatch is not None
            yield _Box(
                left_s=span.start_s - start_s,
                width_s=span.end_s - span.start_s,
                top=rank + style.top + row * height,
                height=height,
                color=style.color,
                number=str(span.microbatch) if is_numbered else "",
            )


def _frame(axes: "Axes", trace: Trace, *, step: int, seconds: float) -> None:
    num_ranks = len(trace.rank_names)
    bubble = next(each.bubble for each in summarise(trace) if each.step == step)
    title = [f"step {step}", trace.label]
    if bubble is not None:
        title.append(f"bubble {100 * bubble:.1f} %")
    axes.set_title(" · ".join(title), loc="left", fontweight="bold")
    axes.set_xlim(0.0, seconds or 1.0)  # a step of instants, too, needs an axis
    axes.set_xlabel("seconds since the step began")
    axes.set_ylim(num_ranks, 0.0)  # rank 0 on top
    axes.set_yticks(
        [rank + 0.31 for rank in range(num_ranks)],
        [f"rank {rank}\n{printable(name)}" for rank, name in enumerate(trace.rank_names)],
        fontsize=_FONT_POINTS,
        parse_math=False,  # a `$` in a name begins no formula
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#e6e7ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for rank in range(0, num_ranks, 2):
        axes.axhspan(rank, rank + 1, color="#f6f7fa", zorder=0)


def _draw(axes: "Axes", box: _Box) -> None:
    ends = [(box.left_s, 0.0), (box.left_s + box.width_s, 0.0)]
    left_px, right_px = axes.transData.transform(ends)[:, 0]
    width_px = right_px - left_px
    axes.broken_barh(
        [(box.left_s, box.width_s)],
        (box.top, box.height),
        facecolor=box.color,
        # A frame separates neighbours, but would hide a box that is hardly wider than itself.
        edgecolor="white" if width_px > 3 else box.color,
        linewidth=0.5,
    )
    character_px = 0.7 * _FONT_POINTS * _DPI / 72  # a digit is 0.7 of the size; 72 points an inch
    if box.number and width_px >= character_px * len(box.number):
        axes.text(
            box.left_s + box.width_s / 2,
            box.top + box.height / 2,
            box.number,
            ha="center",
            va="center",
            fontsize=_FONT_POINTS,
        )
