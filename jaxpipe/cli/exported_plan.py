"""What `jaxpipe plan --export` writes beside the plan file, for other systems."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError
from jaxpipe.propose.options import TrainingSystem

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from jaxpipe.config import Config
    from jaxpipe.plan import Plan
    from jaxpipe.topo import Cluster


def needed_settings(system: TrainingSystem | None, read: "Config") -> tuple[str, ...]:
    """Return what to set before a search, so that a system with few schedules has the plan's.

    Raises:
        ConfigError: the run has a mesh or islands, which no plan file holds.
    """
    from jaxpipe.propose.plan_export import SCHEDULES

    if system is not None and read.mesh.num_devices > 1:
        raise ConfigError(
            f"`mesh` has {read.mesh.num_devices} devices for a rank, which `--export` does not "
            "write; leave the section out"
        )
    if system is not None and read.outer.islands:
        raise ConfigError(
            f"`outer.islands` is {read.outer.islands}, which `--export` does not write; set it to 0"
        )
    is_open = read.plan.schedule is None and read.plan.schedule_file is None
    if system is None or system not in SCHEDULES or not is_open:
        return ()
    return (f"plan.schedule={SCHEDULES[system][0]}",)


def write_exports(
    system: TrainingSystem | None,
    read: "Config",
    plan: "Plan",
    cluster: "Cluster",
    out: Path,
    *,
    codecs: Sequence[str],
) -> list[str]:
    """Write the files of a system beside `out`; return the lines that say so, none without one.

    `codecs` are settings that were chosen with the plan.

    Raises:
        PlanError: the system cannot do what the plan says.
    """
    from jaxpipe.propose.conditions import trained_model
    from jaxpipe.propose.plan_export import export_plan
    from jaxpipe.run.folder.output_files import announce_replaced

    if system is None:
        return []
    files = export_plan(
        plan,
        system,
        sequence=trained_model(read).sequence,
        devices=[device.name for device in cluster.devices],
        csv_name=out.with_suffix(".csv").name,
    )
    paths = {out.with_suffix(ending): text for ending, text in files.items()}
    announce_replaced(paths)
    for path, text in paths.items():
        path.write_text(text)
    configured = (f"comm.boundary={read.comm.boundary}", f"comm.gradients={read.comm.gradients}")
    left_out = [*codecs, *(codec for codec in configured if not codec.endswith("=none"))]
    without = f"not in them: {', '.join(left_out)}; a step takes longer without"
    return [f"{system} -> {', '.join(map(str, paths))}", *([without] if left_out else [])]
