"""A plan as a TOML file: readable, and read back exactly as it was.

::

    format = 7
    cluster = "two-region"
    schedule = "1f1b"
    all_reduce = "tree"
    tied = true
    cut = [3, 2]                         # layers of each stage
    microbatch = 1
    num_microbatches = 8
    sync = [                             # a sync tree over ranks for each segment
        [0, 2],
        [1, 3],
    ]
    sync_shared = [[0, 1], [2, 3]]       # over the ranks of a tied embedding
    sync_all = [[0, 1], [2, 3]]          # over all ranks

    [[replica]]
    placement = [0, 1]                   # devices of the cluster, one for each rank
    devices = ["ohio-0:0", "ohio-1:0"]   # their names

    [[replica]]
    placement = [2, 3]
    devices = ["virginia-0:0", "virginia-1:0"]

`cut`, `microbatch`, `num_microbatches`, `warmup`, `codecs` and `data_parts` stand at the top if all
replicas share them; a replica's own value stands in its table and takes precedence::

    [[replica]]
    placement = [2]
    devices = ["virginia-0:0"]
    cut = [5]
    num_microbatches = 2

The devices of a rank with several are an array, and `sharing` says how they share its stages
(`jaxpipe.plan.group`): `placement = [[0, 1], 2]`. `codecs` has one codec for each boundary between
stages, none for those of the run's configuration; `data_parts` says for each rank into how many
parts its devices divide samples before they share stages by tensor parallelism.

The segments of `sync` are the stages, or the parts of them that the same ranks hold
(`jaxpipe.plan.segments`). Optional keys: `num_chunks`, `sharing`, `warmup`, `codecs`, `data_parts`,
`remat` (the rematerialisation of all stages), and `devices`, which files of older versions lack. A
custom schedule is an array of the rows of a schedule file (`jaxpipe.schedule.csv_file`). Sync trees
are ranks, or arrays of trees. Files of formats 1 to 6 are read as well
(`jaxpipe.plan.older_plan_files`).

`jaxpipe plan` writes this file for `plan.file`. `jaxpipe train` writes it as `plan.toml` into the
folder of each run: the launcher resolves the plan once, and its ranks read it. A run that continues
with another plan, after a loss for example, writes it as such a file too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jaxpipe.collective import AllReduceKind, CodecKind, SyncTree
from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import read_text, reason_of
from jaxpipe.plan.check import check_plan
from jaxpipe.plan.group import Sharing, check_hosts
from jaxpipe.plan.older_plan_files import FORMAT, upgraded
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import Schedule, ScheduleKind, parse_schedule, schedule_rows
from jaxpipe.schedule.remat import Remat
from jaxpipe.topo import Cluster
from jaxpipe.topo.names import check_cluster, check_device
from jaxpipe.topo.toml_text import parse_toml, toml_pair, toml_rows

_T = TypeVar("_T", int, str)

_SHARED = ("cut", "microbatch", "num_microbatches", "warmup", "codecs", "data_parts")
"""Fields of replicas that stand at the top where all replicas share them."""
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
class _OfReplica:
    """The fields that a replica has of its own, or shares with all others."""

    cut: Cut | None = None
    microbatch: int | None = None
    num_microbatches: int | None = None
    warmup: tuple[int, ...] | None = None
    codecs: tuple[CodecKind, ...] | None = None
    data_parts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica(_OfReplica):
    placement: tuple[int | tuple[int, ...], ...]
    devices: tuple[str | tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(_OfReplica):
    cluster: str
    schedule: ScheduleKind | tuple[str, ...]
    tied: bool
    sync: tuple[Any, ...]
    sync_shared: Any
    sync_all: Any
    replica: tuple[_Replica, ...]
    format: int = FORMAT
    sharing: Sharing = Sharing.TENSOR
    num_chunks: int = 1
    all_reduce: AllReduceKind = AllReduceKind.TREE
    remat: Remat | None = None


def write_plan(plan: Plan, cluster: Cluster, path: Path, *, about: str = "") -> None:
    """Write the file of a plan for this cluster; `about` becomes a comment at its top."""
    path.write_text(plan_text(plan, cluster, about=about))


def plan_text(plan: Plan, cluster: Cluster, *, about: str = "") -> str:
    """Return the text of the file of a plan for this cluster."""
    return resolved_plan_text(ResolvedPlan.of(plan, cluster), about=about)


def resolved_plan_text(resolved: ResolvedPlan, *, about: str = "") -> str:
    """Return the text of a plan file."""
    plan, names = resolved.plan, iter(resolved.groups)
    fields = [_fields(pipeline) for pipeline in plan.pipelines]
    shared = {key: value for key, value in fields[0].items() if _are_equal(fields, key)}
    lines = [
        *(f"# {line}" for line in about.splitlines()),
        toml_pair("format", FORMAT),
        toml_pair("cluster", resolved.cluster),
        *_schedule_lines(plan),
        toml_pair("all_reduce", plan.all_reduce.value),
        *([] if plan.remat is None else [toml_pair("remat", plan.remat.value)]),
        *([] if plan.num_chunks == 1 else [toml_pair("num_chunks", plan.num_chunks)]),
        *([toml_pair("sharing", plan.sharing.value)] if plan.has_groups else []),
        toml_pair("tied", plan.tied),
        *(toml_pair(*pair) for pair in shared.items() if pair[1] != ()),
        *toml_rows("sync", plan.sync),
        toml_pair("sync_shared", plan.sync_shared),
        toml_pair("sync_all", plan.sync_all),
    ]
    for pipeline, row in zip(plan.pipelines, fields, strict=True):
        lines += [
            "",
            "[[replica]]",
            toml_pair("placement", [_plain(group) for group in pipeline.groups]),
            toml_pair("devices", [_plain(next(names)) for _ in pipeline.devices]),
            *(toml_pair(*pair) for pair in row.items() if pair[0] not in shared and pair[1] != ()),
        ]
    return "\n".join(lines) + "\n"


def _fields(pipeline: Pipeline) -> dict[str, Any]:
    """Return the fields of a replica; empty ones are not written."""
    values = {name: getattr(pipeline, name) for name in _SHARED}
    return {name: () if value is None else value for name, value in values.items()}


def _are_equal(fields: Sequence[dict[str, Any]], key: str) -> bool:
    return all(row[key] == fields[0][key] for row in fields)


def read_plan(path: Path, cluster: Cluster) -> Plan:
    """Return the plan in a file, and check that it is one for this cluster.

    Raises:
        PlanError: the file cannot be read, is not a plan, or is for another cluster.
    """
    file = _parse(_read(path), source=str(path))
    if file.cluster != cluster.name:
        raise PlanError(
            f"{path} has `cluster` {file.cluster!r}, the configuration {cluster.name!r}; plan "
            "again, or name that cluster"
        )
    plan = _plan(file, source=str(path), num_devices=len(cluster))
    named = ResolvedPlan.of(plan, cluster)
    # Positions shift if the cluster file gains a device under the same `cluster` name; names tell.
    for rank, (group, group_in_cluster) in enumerate(
        zip(_names(file) or named.groups, named.groups, strict=False)
    ):
        if group != group_in_cluster:
            name, expected = (" ".join(names) for names in (group, group_in_cluster))
            raise PlanError(
                f"{path} has {name!r} in `devices` for rank {rank}, and cluster {cluster.name!r} "
                f"has {expected!r} there: the cluster has changed; plan again"
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
    numbers = (d for row in file.replica for group in _groups(row.placement) for d in group)
    num_devices = 1 + max(numbers, default=0)
    plan = _plan(file, source=source, num_devices=num_devices)
    if len(names) != plan.num_ranks:
        raise PlanError(
            f"{source} has {plan.num_ranks} ranks and {len(names)} names in `devices`: a resolved "
            "plan names the devices of each rank; set `plan.file` to it instead"
        )
    return ResolvedPlan(plan=plan, cluster=file.cluster, groups=names)


def is_plan_file(path: Path) -> bool:
    """Return whether a TOML file is a plan: a configuration has the section `[run]`.

    Raises:
        PlanError: it cannot be read, or is not TOML.
    """
    try:
        tree = parse_toml(_read(path))
    except ValueError as error:
        raise PlanError(f"{path} is not TOML: {error}") from error
    return "schedule" in tree and "run" not in tree


def _read(path: Path) -> str:
    try:
        return read_text(path, most_bytes=_MOST_BYTES)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not a plan: {error}") from error


def _parse(text: str, *, source: str) -> _File:
    try:
        tree = upgraded(parse_toml(text), source=source)
        file = msgspec.convert(tree, _File)
        # Names reach traces and terminals, also where no cluster is read.
        check_cluster(file.cluster, "cluster")
        for name in (name for group in _names(file) for name in group):
            check_device(name, "devices")
        if not all(group for row in file.replica for group in _groups(row.placement)):
            raise ValueError("`placement` has a rank without a device: name one, or leave it out")
    except ValueError as error:
        raise PlanError(f"{source} is not a plan: {error}") from error
    return file


def _plan(file: _File, *, source: str, num_devices: int) -> Plan:
    plan = Plan(
        pipelines=tuple(_pipeline(row, file, source=source) for row in file.replica),
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


def _pipeline(row: _Replica, file: _File, *, source: str) -> Pipeline:
    values: dict[str, Any] = {}
    for name in _SHARED:
        value = getattr(row, name)
        values[name] = getattr(file, name) if value is None else value
    for name in ("cut", "microbatch", "num_microbatches"):
        if values[name] is None:
            raise PlanError(
                f"{source} is not a plan: `{name}` is missing; state it at the top for all "
                "replicas, or in each [[replica]]"
            )
    groups = _groups(row.placement)
    return Pipeline(
        devices=tuple(group[0] for group in groups),
        peers=tuple(group[1:] for group in groups),
        cut=values["cut"],
        microbatch=values["microbatch"],
        num_microbatches=values["num_microbatches"],
        warmup=values["warmup"] or None,
        codecs=values["codecs"] or (),
        data_parts=values["data_parts"] or (),
    )


def _names(file: _File) -> tuple[tuple[str, ...], ...]:
    return tuple(group for row in file.replica for group in _groups(row.devices))


def _groups(row: Sequence[_T | tuple[_T, ...]]) -> tuple[tuple[_T, ...], ...]:
    """Return a row in which each entry is a group: one device stands for a group of one."""
    return tuple(entry if isinstance(entry, tuple) else (entry,) for entry in row)


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
    cut = file.cut or (file.replica[0].cut if file.replica else None) or ()
    return parse_schedule(file.schedule, source=f"{source}, `schedule`", num_stages=len(cut))


def _tree(array: Any) -> SyncTree:
    if isinstance(array, list) and array:  # an empty array is refused below: it has no leader
        return tuple(_tree(member) for member in array)
    if not isinstance(array, int) or isinstance(array, bool):  # `true` is an int in Python
        raise PlanError(f"`sync` must be made of ranks, and has {array!r}; name a rank there")
    return array
