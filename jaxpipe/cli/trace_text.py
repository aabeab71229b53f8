"""What `jaxpipe trace` prints: the accounts of ranks, and the tables of links."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpipe.errors import UserError
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_summary, stream_metrics
from jaxpipe.trace import (
    LinkReport,
    RankAccount,
    Spent,
    StepAccount,
    Trace,
    link_table,
    mean_spent_s,
    one_step,
    read_chrome,
    summarise,
)


def chosen_trace(path: Path, step: int | None) -> Trace:
    """Return the trace, or one step of it."""
    measured = read_chrome(path)
    if not measured.spans:
        raise UserError(f"`{path}` has no spans; train with `trace.steps` above 0")
    return measured if step is None else one_step(measured, step=step)


def reports_of(run: Path, step: int | None) -> list[LinkReport]:
    """Return the reports of links of a run, or the one of a step."""
    # A paced run reports no links: its messages cross emulated ones, which are as planned.
    if not run.is_dir() or "paced" in read_summary(run / METRICS_FILE, level=logging.DEBUG).truth:
        return []
    return [
        metrics.links
        for metrics in stream_metrics(run / METRICS_FILE)
        if metrics.links is not None
        and (step is None or metrics.links.first_step <= step <= metrics.step)
    ]


def lines_of_links(reports: list[LinkReport], measured: Trace, *, by_ranks: bool) -> list[str]:
    """Return the tables of links: of regions, and of ranks if these were asked for and kept."""
    if not reports:
        return []
    lines = ["", f"bytes, seconds on the way and goodput of links ({measured.label})"]
    lines += link_table(reports)
    if by_ranks and any(report.ranks for report in reports):
        lines += ["", *link_table(reports, ranks=True)]
    return lines


def _bubble(trace: Trace) -> float | None:
    """Return the mean bubble of the steps of a trace."""
    bubbles = [step.bubble for step in summarise(trace) if step.bubble is not None]
    return sum(bubbles) / len(bubbles) if bubbles else None


def _percent(bubble: float | None) -> str:
    return "unknown" if bubble is None else f"{bubble:.1%}"


def lines_of_trace(
    traces: Sequence[Trace],
    steps: StepAccount,
    count: int,
    foreseen: list[StepAccount],
    assumed: str,
    shown_ranks: Sequence[int],
) -> list[str]:
    """Return the accounts of ranks, and their means, measured and simulated."""
    measured = traces[0]
    head = "".join(f"{kind.value:>12}" for kind in Spent)
    which = f"step {steps.step}" if count == 1 else f"mean of {count} steps"
    lines = [
        f"a step takes {steps.seconds:.4g} s ({measured.label}, {which})",
        f"bubble {_percent(_bubble(measured))} of the pipeline phase ({measured.label}, {which})",
        "",
        f"rank {head}   longest wait for",
        *(
            _row(str(rank.rank), rank, steps.seconds)
            for rank in steps.ranks
            if rank.rank in set(shown_ranks)
        ),
    ]
    for step, truth in (
        (steps, measured.truth.value),
        *((predicted, "") for predicted in foreseen),
    ):
        mean = mean_spent_s(step)
        shares = "".join(_share(mean[kind], step.seconds) for kind in Spent)
        if not truth:
            bubble = _percent(_bubble(traces[1]))
            lines += ["", f"simulated: {step.seconds:.4g} s, bubble {bubble} ({assumed})"]
        lines.append(f"mean {shares}")
    return lines


def _row(name: str, rank: RankAccount, seconds: float) -> str:
    shares = "".join(_share(rank.spent_s[kind], seconds) for kind in Spent)
    waits = sorted(rank.waited_s.items(), key=lambda wait: -wait[1])[:1]
    worst = "".join(f"   rank {who}, {waited_s / seconds:.1%}" for who, waited_s in waits)
    return f"{name:<5}{shares}{worst}"


def _share(part_s: float, whole_s: float) -> str:
    # A trace of instants has no length to share.
    return f"{part_s / whole_s if whole_s > 0 else 0.0:>12.1%}"


def json_of_trace(
    traces: Sequence[Trace],
    steps: StepAccount,
    foreseen: list[StepAccount],
    shown_ranks: Sequence[int],
) -> dict[str, Any]:
    """Return the object that `--json` prints, without its links."""
    measured, *simulated = traces
    return {
        "truth": measured.truth.value,
        "about": measured.about,
        "seconds": steps.seconds,
        "bubble": _bubble(measured),
        "mean": mean_spent_s(steps),
        "ranks": [
            {
                "rank": rank.rank,
                "name": measured.rank_names[rank.rank],
                "spent": rank.spent_s,
                "waited_for": rank.waited_s,
            }
            for rank in steps.ranks
            if rank.rank in set(shown_ranks)
        ],
        "simulated": [
            {"seconds": s.seconds, "bubble": _bubble(trace), "mean": mean_spent_s(s)}
            for s, trace in zip(foreseen, simulated, strict=True)
        ],
    }
