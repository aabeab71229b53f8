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
    placement = [                        # devices of the cluster, a replica to a line
        [0, 1],
        [2, 3],
    ]
    devices = [                          # their names
        ["ohio-0:0", "ohio-1:0"],
        ["virginia-0:0", "virginia-1:0"],
    ]
    sync = [                             # a sync tree over ranks for each segment
        [0, 2],
        [1, 3],
    ]
    sync_shared = [[0, 1], [2, 3]]       # over the ranks of a tied embedding
    sync_all = [[0, 1], [2, 3]]          # over all ranks

Where replicas differ, `format` is 2, and each of `cut`, `microbatch`, `num_microbatches` and
`warmup` may have an entry for each replica::

    format = 2
    num_microbatches = [6, 2]
    cut = [
        [3, 2],
        [5],
    ]
    placement = [
        [0, 1],
        [2],
    ]

Where ranks have several devices, `format` is 3, those of a rank are an array, and `sharing` says
how they share its stages (`jaxpipe.plan.group`)::

    format = 3
    sharing = "tensor"
    placement = [
        [[0, 1], [2, 3]],
        [[4, 5], 6],
    ]

Where boundaries between stages have codecs of their own, `format` is 4, and `codecs` has one for
each, of all replicas or of each; an empty array stands for those of the run's configuration::

    format = 4
    codecs = [
        ["none", "int8"],
        [],
    ]

Where ranks divide samples before their devices share stages by tensor parallelism, `format` is 5,
and `data_parts` says into how many parts, for each rank of all replicas or of each::

    format = 5
    data_parts = [2, 1]

The segments of `sync` are the stages, or the parts of them that the same ranks hold
(`jaxpipe.plan.segments`). Optional keys: `warmup`, `num_chunks`, and `devices`, which files of
older versions lack. A custom schedule is an array of the rows of a schedule file
(`jaxpipe.schedule.csv_file`). Sync trees are ranks, or arrays of trees.

`jaxpipe plan` writes this file for `plan.file`. `jaxpipe train` writes it as `plan.toml` into the
folder of each run: the launcher resolves the plan once, and its ranks read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jaxpipe.collective import AllReduceKind, CodecKind, SyncTree
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import check_plan
from jaxpipe.plan.group import Sharing, check_hosts
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import Schedule, ScheduleKind, parse_schedule, schedule_rows
from jaxpipe.schedule.remat import Remat
from jaxpipe.topo import Cluster
from jaxpipe.topo.names import check_cluster, check_device
from jaxpipe.topo.regular_file import read_regular
from jaxpipe.topo.toml_text import parse_toml, toml_pair, toml_rows

_T = TypeVar("_T", int, str)

_FORMATS = (1, 2, 3, 4, 5)
_MOST_BYTES = 2**26
"""Of a plan file: 64 MiB, more than the sync trees and a schedule of 8192 ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan:
    """A plan with the names that it refers to: all that a rank needs to know of its cluster.

    `groups` are the names of the devices of each rank, in the order of ranks.
    """

    plan: Plan
    cluster: str
    groups: tuple[tuple[str, ...], ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of the device of each rank, of several the one that sends and receives."""
        return tuple(group[0] for group in self.groups)

    @classmethod
    def of(cls, plan: Plan, cluster: Cluster) -> "ResolvedPlan":
        """Look up the names in the cluster that the plan is for."""
        groups = tuple(tuple(cluster.devices[d].name for d in group) for group in plan.groups)
        return cls(plan=plan, cluster=cluster.name, groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: int
    cluster: str
    schedule: ScheduleKind | tuple[str, ...]
    microbatch: int | tuple[int, ...]
    num_microbatches: int | tuple[int, ...]
    tied: bool
    cut: tuple[int | tuple[int, ...], ...]
    placement: tuple[tuple[int | tuple[int, ...], ...], ...]
    sync: tuple[Any, ...]
    sync_shared: Any
    sync_all: Any
    devices: tuple[tuple[str | tuple[str, ...], ...], ...] | None = None
    sharing: Sharing = Sharing.TENSOR
    num_chunks: int = 1
    all_reduce: AllReduceKind = AllReduceKind.TREE
    warmup: tuple[int | tuple[int, ...], ...] | None = None
    codecs: tuple[CodecKind | tuple[CodecKind, ...], ...] = ()
    data_parts: tuple[int | tuple[int, ...], ...] = ()
    remat: Remat | None = None


def write_plan(plan: Plan, cluster: Cluster, path: Path, *, about: str = "") -> None:
    """Write the file of a plan for this cluster; `about` becomes a comment at its top."""
    path.write_text(plan_text(plan, cluster, about=about))


def plan_text(plan: Plan, cluster: Cluster, *, about: str = "") -> str:
    """Return the text of the file of a plan for this cluster."""
    return resolved_plan_text(ResolvedPlan.of(plan, cluster), about=about)


def resolved_plan_text(resolved: ResolvedPlan, *, about: str = "") -> str:
    """Return the text of a plan file."""
    plan = resolved.plan
    names = iter(resolved.groups)
    devices = [[_plain(next(names)) for _ in row] for row in plan.placement]
    placement = [[_plain(group) for group in each.groups] for each in plan.pipelines]
    lines = [
        *(f"# {line}" for line in about.splitlines()),
        toml_pair("format", _format(plan)),
        toml_pair("cluster", resolved.cluster),
        *_schedule_lines(plan),
        toml_pair("all_reduce", plan.all_reduce.value),
        *([] if plan.remat is None else [toml_pair("remat", plan.remat.value)]),
        *([] if plan.num_chunks == 1 else [toml_pair("num_chunks", plan.num_chunks)]),
        *_warmup_lines(plan),
        *_lines(plan, "microbatch"),
        *_lines(plan, "num_microbatches"),
        toml_pair("tied", plan.tied),
        *_lines(plan, "cut"),
        *(_lines(plan, "codecs") if plan.has_codecs else []),
        *([toml_pair("sharing", plan.sharing.value)] if plan.has_groups else []),
        *(_lines(plan, "data_parts") if plan.has_data_parts else []),
        *toml_rows("placement", placement),
        *toml_rows("devices", devices),
        *toml_rows("sync", plan.sync),
        toml_pair("sync_shared", plan.sync_shared),
        toml_pair("sync_all", plan.sync_all),
    ]
    return "\n".join(lines) + "\n"


def read_plan(path: Path, cluster: Cluster) -> Plan:
    """Return the plan in a file, and check that it is one for this cluster.

    Raises:
        PlanError: the file cannot be read, is not a plan, or is for another cluster.
    """
    file = _parse(_read(path), source=str(path))
    if file.cluster != cluster.name:
        raise PlanError(
            f"a plan is for one cluster: {path} has `cluster` {file.cluster!r}, the configuration "
            f"{cluster.name!r}; plan again, or name that cluster"
        )
    plan = _plan(file, source=str(path), num_devices=len(cluster))
    named = ResolvedPlan.of(plan, cluster)
    # Positions shift if the cluster file gains a device under the same `cluster` name; names tell.
    for rank, (group, own) in enumerate(
        zip(_names(file) or named.groups, named.groups, strict=False)
    ):
        if group != own:
            name, expected = (" ".join(each) for each in (group, own))
            raise PlanError(
                f"a plan names the devices of its cluster: {path} has {name!r} in `devices` for "
                f"rank {rank}, cluster {cluster.name!r} has {expected!r} there; the "
                "cluster has changed, plan again"
            )
    check_hosts(plan.groups, cluster)
    return plan


def read_resolved_plan(path: Path) -> ResolvedPlan:
    """Return the plan in a file with the names that it refers to; reads no cluster.

    Raises:
        PlanError: the file cannot be read, is not a plan, or lacks the names of its devices.
    """
    return parse_resolved_plan(_read(path), source=str(path))


def parse_resolved_plan(text: str, *, source: str) -> ResolvedPlan:
    """Return the plan in the text of a file; errors name the `source`.

    Raises:
        PlanError: it is not a plan, or lacks the names of its devices.
    """
    file = _parse(text, source=source)
    names = _names(file)
    # The resolver has checked that the devices exist in the cluster.
    num_devices = 1 + max((d for row in _groups(file.placement) for g in row for d in g), default=0)
    plan = _plan(file, source=source, num_devices=num_devices)
    if len(names) != plan.num_ranks:
        raise PlanError(
            f"a resolved plan names the device of each rank: {source} has {plan.num_ranks} ranks "
            f"and {len(names)} names in `devices`; set `plan.file` to it instead"
        )
    return ResolvedPlan(plan=plan, cluster=file.cluster, groups=names)


def _read(path: Path) -> str:
    try:
        return read_regular(path, most_bytes=_MOST_BYTES).decode()
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not a plan: {error}") from error


def _parse(text: str, *, source: str) -> _File:
    try:
        file = msgspec.convert(parse_toml(text), _File)
        # Names reach traces and terminals, also where no cluster is read.
        check_cluster(file.cluster, "cluster")
        for name in (name for group in _names(file) for name in group):
            check_device(name, "devices")
        if not all(group for row in _groups(file.placement) for group in row):
            raise ValueError("`placement` has a rank without a device: name one, or leave it out")
    except ValueError as error:
        raise PlanError(f"{source} is not a plan: {error}") from error
    if file.format not in _FORMATS:
        raise PlanError(
            f"{source} has `format` {file.format}, this version of jaxpipe reads "
            f"{', '.join(map(str, _FORMATS))}; plan again"
        )
    return file


def _plan(file: _File, *, source: str, num_devices: int) -> Plan:
    plan = Plan(
        pipelines=_pipelines(file, source=source),
        schedule=_schedule(file, source),
        all_reduce=file.all_reduce,
        num_chunks=file.num_chunks,
        tied=file.tied,
        sync=tuple(_tree(array) for array in file.sync),
        sync_shared=_tree(file.sync_shared),
        sync_all=_tree(file.sync_all),
        sharing=file.sharing,
        remat=file.remat,
    )
    check_plan(plan, num_devices=num_devices)
    return plan


def _pipelines(file: _File, *, source: str) -> tuple[Pipeline, ...]:
    columns = {
        "cut": _of_each(file, "cut", source=source),
        "microbatch": _of_each(file, "microbatch", source=source),
        "num_microbatches": _of_each(file, "num_microbatches", source=source),
        # An empty array says that this replica has none.
        "codecs": _of_each(file, "codecs", source=source),
        "data_parts": _of_each(file, "data_parts", source=source),
        "warmup": [each or None for each in _of_each(file, "warmup", source=source)],
    }
    return tuple(
        Pipeline(
            devices=tuple(group[0] for group in row),
            peers=tuple(group[1:] for group in row),
            **dict(zip(columns, values, strict=True)),
        )
        for row, *values in zip(_groups(file.placement), *columns.values(), strict=True)
    )


def _of_each(file: _File, name: str, *, source: str) -> Sequence[Any]:
    """Return the value of each replica, from one for all of them or an array of their own."""
    value, num_replicas = getattr(file, name), len(file.placement)
    is_row = name in ("cut", "warmup", "codecs", "data_parts")
    kinds = {isinstance(entry, tuple) for entry in value} if isinstance(value, tuple) else set()
    if not isinstance(value, tuple) or (is_row and True not in kinds):
        return (value,) * num_replicas
    if (is_row and False in kinds) or len(value) != num_replicas:
        raise PlanError(
            f"{source} is not a plan: `{name}` is {value}; give one for all {num_replicas} "
            "replicas of `placement`, or one for each"
        )
    return value


def _format(plan: Plan) -> int:
    """Return the oldest format that holds all of a plan."""
    if plan.has_data_parts:
        return 5
    if plan.has_codecs:
        return 4
    return 3 if plan.has_groups else 1 if plan.is_even else 2


def _lines(plan: Plan, name: str) -> list[str]:
    """Return the lines of a field of pipelines: one value, if it is that of all."""
    values = [getattr(pipeline, name) for pipeline in plan.pipelines]
    if len(set(values)) == 1:
        return [toml_pair(name, values[0])]
    return toml_rows(name, values) if isinstance(values[0], tuple) else [toml_pair(name, values)]


def _warmup_lines(plan: Plan) -> list[str]:
    if all(pipeline.warmup is None for pipeline in plan.pipelines):
        return []
    own = tuple(replace(each, warmup=each.warmup or ()) for each in plan.pipelines)
    return _lines(replace(plan, pipelines=own), "warmup")


def _names(file: _File) -> tuple[tuple[str, ...], ...]:
    return tuple(group for row in _groups(file.devices or ()) for group in row)


def _groups(rows: Sequence[Sequence[_T | tuple[_T, ...]]]) -> list[tuple[tuple[_T, ...], ...]]:
    """Return rows in which each entry is a group: one device stands for a group of one."""
    return [tuple(each if isinstance(each, tuple) else (each,) for each in row) for row in rows]


def _plain(group: tuple[_T, ...]) -> _T | tuple[_T, ...]:
    """Return a group as it is written: one device without an array around it."""
    return group[0] if len(group) == 1 else group


def _schedule_lines(plan: Plan) -> list[str]:
    if isinstance(plan.schedule, ScheduleKind):
        return [toml_pair("schedule", plan.schedule.value)]
    return toml_rows("schedule", schedule_rows(plan.schedule))


def _schedule(file: _File, source: str) -> ScheduleKind | Schedule:
    if isinstance(file.schedule, ScheduleKind):
        return file.schedule
    # Where replicas have their own cuts, the check refuses a schedule that is one for all.
    return parse_schedule(file.schedule, source=f"{source}, `schedule`", num_stages=len(file.cut))


def _tree(array: Any) -> SyncTree:
    if isinstance(array, list) and array:  # an empty array is refused below: it has no leader
        return tuple(_tree(member) for member in array)
    if not isinstance(array, int) or isinstance(array, bool):  # `true` is an int in Python
        raise PlanError(f"a sync tree is made of ranks: it has {array!r}; name a rank there")
    return array
