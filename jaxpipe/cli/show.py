"""`jaxpipe show`: the placement, partition and schedule of a configuration, without a run."""

from pathlib import Path
from typing import Annotated

import tyro


def show(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    schedule_csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> int:
    """Draw the plan of a run: placement, schedule, and how gradients are all-reduced.

    Args:
        config: a TOML file.
        settings: a change to it, such as `train.steps=10`; may be repeated.
        schedule_csv: a file to write with the schedule, for you to edit: `plan.schedule_file`
            reads it.
    """
    from jaxpipe.config import cluster_from, load_config, plan_from
    from jaxpipe.plan import draw_plan
    from jaxpipe.run.console import console, next_line
    from jaxpipe.run.output_files import check_output
    from jaxpipe.schedule import write_schedule

    read = load_config(config, settings)
    cluster = cluster_from(read)
    plan = plan_from(read, cluster)
    console.print(draw_plan(plan, cluster), markup=False)
    changes = [word for setting in settings for word in ("--set", setting)]
    if schedule_csv is not None:
        check_output("--schedule-csv", schedule_csv)
        write_schedule(plan.compute_schedule(), schedule_csv)
        console.print(f"\nschedule -> {schedule_csv}", markup=False)
        changes += ["--set", f"plan.schedule_file={schedule_csv}"]
    console.print(f"\n{next_line('train', config, *changes)}", markup=False)
    return 0
