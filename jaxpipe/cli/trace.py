"""`jaxpipe trace`: breaks down the time of a run's steps, next to the simulated plan."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxpipe.errors import UserError
from jaxpipe.run.folder.output_files import check_output, check_picture
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_summary, stream_metrics
from jaxpipe.trace import (
    LinkReport,
    RankAccount,
    Spent,
    StepAccount,
    Trace,
    account,
    chosen_ranks,
    link_table,
    mean_account,
    mean_spent_s,
    one_step,
    plot_beside,
    read_chrome,
    summarise,
    write_overlay,
)


class SimulatedLinks(StrEnum):
    """The links over which the plan is simulated."""

    CLUSTER = "cluster"
    """Those of the run's cluster, with the scale of emulated links."""
    FREE = "free"
    """Links that take no time: the schedule alone remains."""


def trace(  # noqa: PLR0913  each is an option of the command line
    run: tyro.conf.Positional[Path],
    *,
    step: int | None = None,
    ranks: Annotated[str | None, tyro.conf.arg(metavar="0-7,12")] = None,
    stages: Annotated[str | None, tyro.conf.arg(metavar="0,2-3")] = None,
    links: SimulatedLinks = SimulatedLinks.CLUSTER,
    png: Path | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Print the bubble of a run, where its time went, who waited for whom, and the simulated plan.

    Below are the links between regions: what all steps have sent over them, and how fast.

    Args:
        run: the folder of a run, or a trace file alone.
        step: one step of the trace, by default the mean of all; counted from 1, as in the log.
        ranks: the ranks to list and to draw; means and bubbles are those of all.
        stages: the ranks of these stages alone; with `--ranks`, those that are both.
        links: simulate the plan over the links of the `cluster`, or over `free` ones.
        png: a PNG, SVG or PDF to draw: the measured step above the simulated one.
        out: a trace file to write with both, for Perfetto.
        json_: print one JSON object and nothing else.
    """
    check_picture("--png", png)
    check_output("--out", out)
    path = run / "trace.json" if run.is_dir() else run
    measured = _chosen(path, step)
    last = max(span.step for span in measured.spans)
    traces, assumed = [one_step(measured, step=last)], ""
    if run.is_dir():
        from jaxpipe.cli.simulated_run import simulated_run  # slow; `--help` can do without

        simulated, assumed = simulated_run(run, measured, free_links=links is SimulatedLinks.FREE)
        traces.append(one_step(simulated, step=1, called=last))  # the same number, to lie over it
    shown_ranks = chosen_ranks(measured, ranks=ranks, stages=stages)
    every_step = (measured, *traces[1:])
    steps = mean_account(account(measured))
    foreseen = [account(predicted)[0] for predicted in traces[1:]]
    reports = _reports(run, step)
    if json_:
        result = _json(every_step, steps, foreseen, shown_ranks)
        print(json.dumps(result | {"links": [asdict(report) for report in reports]}))
    else:
        count = len({span.step for span in measured.spans})
        lines = _lines(every_step, steps, count, foreseen, assumed, shown_ranks)
        lines += _link_lines(reports, measured, by_ranks=ranks is not None)
        console.print("\n".join(lines), markup=False)
    if png is not None:
        plot_beside(traces, png, step=last, ranks=shown_ranks)
    if out is not None:
        write_overlay(traces[::-1], out)  # the simulated rank above the measured one
    if not json_:
        written = {"picture": png, "overlay": out}
        ends = [f"{name} -> {file}" for name, file in written.items() if file is not None]
        ends.append(f"next: open {out or path} in ui.perfetto.dev")
        console.print("\n" + "\n".join(ends), markup=False)
    return 0


def _chosen(path: Path, step: int | None) -> Trace:
    """Return the trace, or one step of it."""
    measured = read_chrome(path)
    if not measured.spans:
        raise UserError(f"`{path}` has no spans; train with `trace.steps` above 0")
    return measured if step is None else one_step(measured, step=step)


def _reports(run: Path, step: int | None) -> list[LinkReport]:
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


def _link_lines(reports: list[LinkReport], measured: Trace, *, by_ranks: bool) -> list[str]:
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


def _lines(
    traces: Sequence[Trace],
    steps: StepAccount,
    count: int,
    foreseen: list[StepAccount],
    assumed: str,
    shown_ranks: Sequence[int],
) -> list[str]:
    measured = traces[0]
    head = "".join(f"{kind.value:>13}" for kind in Spent)
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
    return f"{part_s / whole_s if whole_s > 0 else 0.0:>13.1%}"


def _json(
    traces: Sequence[Trace],
    steps: StepAccount,
    foreseen: list[StepAccount],
    shown_ranks: Sequence[int],
) -> dict[str, Any]:

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
