"""`jaxpipe show`: the placement, partition and schedule of a configuration, without a run."""

import os
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxpipe.config import Config
    from jaxpipe.propose.reasons import Reason
    from jaxpipe.runtime.run_config import RunConfig


def show(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    schedule_csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> int:
    """Draw the plan of a run: placement, schedule, all-reduce, and the memory of each rank.

    Fields of `[plan]` that are not set are searched, as `jaxpipe train` does; the alternatives of
    each choice follow with their simulated seconds. A plan whose stages do not fit into the memory
    of their devices is drawn, and refused.

    Args:
        config: a TOML file.
        settings: a change to it, such as `train.steps=10`; may be repeated.
        schedule_csv: a file to write with the schedule, for you to edit: `plan.schedule_file`
            reads it.
    """
    from jaxpipe.config import cluster_from, load_config
    from jaxpipe.plan import draw_plan
    from jaxpipe.propose.conditions import counted_profile
    from jaxpipe.propose.resolve import resolve
    from jaxpipe.run.folder.output_files import check_output
    from jaxpipe.run.forecast.plan_memory import memory_lines, plan_memory, shared_bytes
    from jaxpipe.run.terminal.console import train_command
    from jaxpipe.run.verdict import check_can_run
    from jaxpipe.schedule import legend, write_schedule

    read = load_config(config, settings, notice=_print)
    cluster = cluster_from(read)
    resolution = resolve(read, cluster)
    plan = resolution.plan
    schedule = plan.compute_schedule(replica=None if plan.is_even else 0)
    drawn = draw_plan(plan, cluster, profile=counted_profile(read, plan.remat))
    if resolution.lines:
        _print("\n".join((*resolution.lines, "")))
    _print(f"{drawn}\n\n{legend(schedule)}\n")
    memory = plan_memory(read, plan, cluster)
    _print("\n".join(memory_lines(memory, shared_room=shared_bytes(cluster))))
    # Drawn first: the error names one rank, the table all of them.
    check_can_run(read, plan, cluster, environment=os.environ)
    _print(f"\n{_timeouts(read.run)}{_notes(read, resolution.reasons)}")
    changes = settings
    if schedule_csv is not None:
        check_output("--schedule-csv", schedule_csv)
        write_schedule(plan.compute_schedule(), schedule_csv)
        _print(f"\nschedule -> {schedule_csv}")
        # A plan file has a schedule of its own, which wins.
        if read.plan.file is None:
            changes = (*settings, f"plan.schedule_file={schedule_csv}")
    _print(f"\nnext: {train_command(config, changes)}")
    return 0


def _notes(config: "Config", reasons: "Sequence[Reason]") -> str:
    """Return the length of a run in epochs, what it does unexpectedly, and why its plan is so."""
    from jaxpipe.config import epochs_line, notices_of
    from jaxpipe.propose.reasons import reason_lines

    length = epochs_line(config)
    lines = (() if length is None else (length,), notices_of(config), reason_lines(reasons))
    text = "\n".join(chain(*lines))
    return f"\n\n{text}" if text else ""


def _timeouts(run: "RunConfig") -> str:
    """Return the line of all timeouts of the section `[run]`."""
    waits = (field.name for field in fields(run) if field.name.endswith("_s"))
    return "timeouts: " + ", ".join(f"`run.{name}` {getattr(run, name):g} s" for name in waits)


def _print(text: str) -> None:
    from jaxpipe.run.terminal.console import console

    console.print(text, markup=False)
