"""A plan as a TOML file: readable, and read back exactly as it was.

::

    format = 1
    cluster = "two-region"
    schedule = "1f1b"
    all_reduce = "tree"
    microbatch = 1
    num_microbatches = 8
    tied = true
    cut = [3, 2]                         # layers of each stage
    placement = [                        # devices, a replica to a line
        [0, 1],                          # ohio-0:0 ohio-1:0
        [2, 3],                          # virginia-0:0 virginia-1:0
    ]
    sync = [                             # a sync tree over ranks for each stage
        [0, 2],
        [1, 3],
    ]
    sync_shared = [[0, 1], [2, 3]]
    sync_all = [[0, 1], [2, 3]]

A key `warmup` follows where it was decided. A schedule without a name is an array of the rows of a
schedule file (`jaxpipe.schedule.csv_file`). Sync trees are ranks, or arrays of trees.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.collective import AllReduceKind, SyncTree, ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.programs import check_programs
from jaxpipe.schedule import Schedule, ScheduleKind, check_chunks, parse_schedule, schedule_rows
from topo import Cluster
from topo.toml_text import parse_toml

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: int
    cluster: str
    schedule: ScheduleKind | tuple[str, ...]
    microbatch: int
    num_microbatches: int
    tied: bool
    cut: Cut
    placement: tuple[tuple[int, ...], ...]
    sync: tuple[Any, ...]
    sync_shared: Any
    sync_all: Any
    num_chunks: int = 1
    all_reduce: AllReduceKind = AllReduceKind.TREE
    warmup: tuple[int, ...] | None = None


def write_plan(plan: Plan, cluster: Cluster, path: Path, *, about: str = "") -> None:
    """Write a plan for this cluster, under a comment that says what it is about."""
    path.write_text(plan_text(plan, cluster, about=about))


def plan_text(plan: Plan, cluster: Cluster, *, about: str = "") -> str:
    """Return the text of a plan file."""
    lines = [
        *(f"# {line}" for line in about.splitlines()),
        f"format = {_FORMAT}",
        f"cluster = {msgspec.json.encode(cluster.name).decode()}",
        *_schedule_lines(plan),
        f'all_reduce = "{plan.all_reduce}"',
        *([] if plan.num_chunks == 1 else [f"num_chunks = {plan.num_chunks}"]),
        *([] if plan.warmup is None else [f"warmup = {list(plan.warmup)}"]),
        f"microbatch = {plan.microbatch}",
        f"num_microbatches = {plan.num_microbatches}",
        f"tied = {str(plan.tied).lower()}",
        f"cut = {list(plan.cut)}",
        "placement = [",
        *(f"    {list(row)},  # {_names(cluster, row)}" for row in plan.placement),
        "]",
        "sync = [",
        *(f"    {_array(tree)}," for tree in plan.sync),
        "]",
        f"sync_shared = {_array(plan.sync_shared)}",
        f"sync_all = {_array(plan.sync_all)}",
    ]
    return "\n".join(lines) + "\n"


def read_plan(path: Path, cluster: Cluster) -> Plan:
    """Return the plan in a file, and check that it is one for this cluster.

    Raises:
        PlanError: the file cannot be read, is not a plan, or is for another cluster.
    """
    try:
        file = msgspec.convert(parse_toml(path.read_text()), _File)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not a plan: {error}") from error
    if file.format != _FORMAT or file.cluster != cluster.name:
        raise PlanError(
            f"a plan is for one cluster: {path} has `format` {file.format} and `cluster` "
            f"{file.cluster!r}, wanted are {_FORMAT} and {cluster.name!r}; plan anew, or name that "
            "cluster"
        )
    plan = Plan(
        placement=file.placement,
        cut=file.cut,
        schedule=_schedule(file, path),
        all_reduce=file.all_reduce,
        num_chunks=file.num_chunks,
        warmup=file.warmup,
        microbatch=file.microbatch,
        num_microbatches=file.num_microbatches,
        tied=file.tied,
        sync=tuple(_tree(array) for array in file.sync),
        sync_shared=_tree(file.sync_shared),
        sync_all=_tree(file.sync_all),
    )
    check_plan(plan, num_devices=len(cluster))
    return plan


def check_plan(plan: Plan, *, num_devices: int) -> None:
    """Check that every rank has a device and every sum its ranks, and that the schedule exists.

    Raises:
        PlanError: it is not so.
    """
    check_chunks(num_stages=plan.num_stages, num_chunks=plan.num_chunks)
    devices = [device for row in plan.placement for device in row]
    if {len(row) for row in plan.placement} != {plan.num_pipeline_ranks}:
        raise PlanError(
            f"every replica holds every stage: the rows of `placement` have "
            f"{[len(row) for row in plan.placement]} devices, `cut` has {plan.num_stages} stages, "
            f"`num_chunks` of each device is {plan.num_chunks}; make them equal"
        )
    if len(set(devices)) < len(devices) or not set(devices) <= set(range(num_devices)):
        raise PlanError(
            f"each rank has a device of its own: `placement` is {plan.placement} for "
            f"{num_devices} devices; name each at most once, counted from 0"
        )
    stages = [
        [plan.rank(replica=replica, stage=stage) for replica in range(plan.num_replicas)]
        for stage in range(plan.num_stages)
    ]
    held = [ranks(tree) for tree in plan.sync]
    if [sorted(each) for each in held] != stages:
        raise PlanError(
            f"gradients are summed over the ranks of a stage: `sync` has {held}, the stages "
            f"{stages}; name each rank once, at each stage that it holds"
        )
    everyone = sorted(ranks(plan.sync_all))
    shared = sorted({*stages[0], *stages[-1]})
    if everyone != list(range(plan.num_ranks)) or sorted(ranks(plan.sync_shared)) != shared:
        raise PlanError(
            f"`sync_all` holds all {plan.num_ranks} ranks, `sync_shared` {shared}: they hold "
            f"{everyone} and {sorted(ranks(plan.sync_shared))}; name each rank once"
        )
    check_programs(plan)
    plan.train_schedule()  # refuses a schedule that cannot be made


def _schedule_lines(plan: Plan) -> list[str]:
    if isinstance(plan.schedule, ScheduleKind):
        return [f'schedule = "{plan.schedule}"']
    return ["schedule = [", *(f'    "{row}",' for row in schedule_rows(plan.schedule)), "]"]


def _schedule(file: _File, path: Path) -> ScheduleKind | Schedule:
    if isinstance(file.schedule, ScheduleKind):
        return file.schedule
    return parse_schedule(file.schedule, source=f"{path}, `schedule`", num_stages=len(file.cut))


def _names(cluster: Cluster, row: tuple[int, ...]) -> str:
    return " ".join(cluster.devices[device].name for device in row)


def _array(tree: SyncTree) -> str:
    return str(tree) if isinstance(tree, int) else f"[{', '.join(map(_array, tree))}]"


def _tree(array: Any) -> SyncTree:
    if isinstance(array, list) and array:
        return tuple(_tree(member) for member in array)
    if not isinstance(array, int) or isinstance(array, bool):
        raise PlanError(f"a sync tree is made of ranks: it has {array!r}; name a rank there")
    return array
