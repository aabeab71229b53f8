"""`jaxpipe trace`: breaks down the time of a run's steps, next to the simulated plan."""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import tyro


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

    Below are the links between regions: what all steps have sent over them, and how fast; and what
    was compressed: bytes, seconds and price in loss of each boundary and of the outer loop.

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
    # `--help` need not wait for these.
    from jaxpipe.cli.trace_text import (
        chosen_trace,
        json_of_trace,
        lines_of_links,
        lines_of_trace,
        reports_of,
    )
    from jaxpipe.run.folder.output_files import check_output, check_picture
    from jaxpipe.run.forecast.compressed_messages import compression_lines
    from jaxpipe.run.terminal.console import console
    from jaxpipe.trace import (
        account,
        chosen_ranks,
        mean_account,
        one_step,
        plot_beside,
        write_overlay,
    )

    check_picture("--png", png)
    check_output("--out", out)
    path = run / "trace.json" if run.is_dir() else run
    measured = chosen_trace(path, step)
    last = max(span.step for span in measured.spans)
    traces, assumed, compressed = [one_step(measured, step=last)], "", ()
    if run.is_dir():
        from jaxpipe.cli.simulated_run import compressed_in, simulated_run

        compressed = compressed_in(run, measured, step=step)
        simulated, assumed = simulated_run(run, measured, free_links=links is SimulatedLinks.FREE)
        traces.append(one_step(simulated, step=1, called=last))  # the same number, to lie over it
    shown_ranks = chosen_ranks(measured, ranks=ranks, stages=stages)
    every_step = (measured, *traces[1:])
    steps = mean_account(account(measured))
    foreseen = [account(predicted)[0] for predicted in traces[1:]]
    reports = reports_of(run, step)
    if json_:
        result = json_of_trace(every_step, steps, foreseen, shown_ranks)
        tables = {"links": reports, "compressed": compressed}
        result |= {name: [asdict(row) for row in rows] for name, rows in tables.items()}
        print(json.dumps(result))
    else:
        count = len({span.step for span in measured.spans})
        lines = [
            *lines_of_trace(every_step, steps, count, foreseen, assumed, shown_ranks),
            *lines_of_links(reports, measured, by_ranks=ranks is not None),
            *compression_lines(compressed, truth=measured.label),
        ]
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
