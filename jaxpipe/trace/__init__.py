"""Traces: the spans of a run, as Perfetto JSON, as numbers and as plots."""

from jaxpipe.trace.account import (
    RankAccount,
    Spent,
    StepAccount,
    account,
    mean_account,
    mean_spent_s,
)
from jaxpipe.trace.bands import chosen_ranks
from jaxpipe.trace.chrome import read_chrome, to_chrome, write_chrome
from jaxpipe.trace.link_table import link_table
from jaxpipe.trace.link_use import (
    LinkReport,
    LinkUse,
    PairUse,
    Traffic,
    busy,
    link_uses,
    total_bytes,
)
from jaxpipe.trace.overlay import of_ranks, one_step, side_by_side, write_overlay
from jaxpipe.trace.plot import Panel, draw_panels, panels_height_in, plot, plot_beside
from jaxpipe.trace.span import Lane, Span, Trace, Truth, messages
from jaxpipe.trace.summary import RankSummary, StepSummary, bubble_fraction, summarise

__all__ = [
    "Lane",
    "LinkReport",
    "LinkUse",
    "PairUse",
    "Panel",
    "RankAccount",
    "RankSummary",
    "Span",
    "Spent",
    "StepAccount",
    "StepSummary",
    "Trace",
    "Traffic",
    "Truth",
    "account",
    "bubble_fraction",
    "busy",
    "chosen_ranks",
    "draw_panels",
    "link_table",
    "link_uses",
    "mean_account",
    "mean_spent_s",
    "messages",
    "of_ranks",
    "one_step",
    "panels_height_in",
    "plot",
    "plot_beside",
    "read_chrome",
    "side_by_side",
    "summarise",
    "to_chrome",
    "total_bytes",
    "write_chrome",
    "write_overlay",
]
