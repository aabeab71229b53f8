"""The plan that takes the devices in the order in which they are named, or listed."""

from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.partition import check_partition, even_partition
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.programs import check_programs
from jaxpipe.plan.sync import island_tree
from jaxpipe.schedule import Schedule, ScheduleKind, read_schedule
from topo import Cluster

MAX_MICROBATCHES = 2**13
"""A schedule is made and checked instruction by instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """The section `[plan]`: a plan file, or what its user decides of a plan."""

    file: str | None = None
    """Plan file written by `jaxpipe plan`. It decides everything but the cluster."""
    cluster: str = "two-region"
    """Name in the catalogue (`jaxpipe topo list`), or path of a cluster file."""
    devices: tuple[str, ...] = ()
    """Names of the devices that ranks 0, 1, ... use. Default: all, in the order of the cluster."""
    stages: int = 2
    """Stages of the pipeline [stages]."""
    replicas: int = 2
    """Replicas of the pipeline: the degree of data parallelism [replicas]."""
    microbatch: int = 1
    """Size of a microbatch [samples]."""
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    """Pipeline schedule."""
    cut: tuple[int, ...] | None = None
    """Partition of the model: layers of each stage [layers]. Default: as even as possible."""
    warmup: tuple[int, ...] | None = None
    """Forwards of each stage before its first backward [microbatches]; for `eager-1f1b`. Default:
    chosen by the schedule."""
    chunks: int = 1
    """Virtual stages per rank, for `interleaved-1f1b` [stages]; divides `stages`."""
    schedule_file: str | None = None
    """CSV file with one row of instructions per rank; takes the place of `schedule`."""
    all_reduce: AllReduceKind | None = None
    """Algorithm of the gradient all-reduce. Default: the fastest over the cluster's links,
    simulated."""

    def __post_init__(self) -> None:
        for field in ("stages", "replicas", "microbatch", "chunks"):
            if getattr(self, field) < 1:
                raise ValueError(f"`{field}` must be at least 1, is {getattr(self, field)}")
        if self.file is not None and self.devices:
            raise ValueError(
                f"a plan from a file says who is where: `devices` is {', '.join(self.devices)}; "
                "leave it out, or `file`"
            )


def default_plan(
    config: PlanConfig, cluster: Cluster, *, num_layers: int, batch: int, tied: bool
) -> Plan:
    """Return the plan in which rank `r` runs on device `r`; sums follow trees if none are chosen.

    Devices count as they are named, or listed.

    Raises:
        PlanError: the devices, the layers, the batch or the warm-up do not fit the stages and
            replicas; a device that is named is not there, or named twice.
    """
    num_stages, num_replicas = config.stages, config.replicas
    size = _pipeline_ranks(config)
    num_ranks = size * num_replicas
    used = _devices(config, cluster)
    if num_ranks > len(used):
        chunks = f" / {config.chunks} chunks" if config.chunks > 1 else ""
        named = "`plan.devices` names" if config.devices else f"cluster {cluster.name!r} has"
        raise PlanError(
            f"each rank needs a device: `plan.stages` x `plan.replicas` = {num_stages}{chunks} x "
            f"{num_replicas} = {num_ranks}, but {named} {len(used)}; use fewer, or a larger "
            "`plan.cluster`"
        )
    cut = config.cut or even_partition(num_layers=num_layers, num_stages=num_stages)
    check_partition(cut, num_layers=num_layers, num_stages=num_stages)
    devices = {r: cluster.devices[used[r]] for r in range(num_ranks)}
    held = [{r: devices[r] for r in range(p, num_ranks, size)} for p in range(size)]
    ends = (0, size - 1)
    plan = Plan(
        placement=tuple(used[first : first + size] for first in range(0, num_ranks, size)),
        cut=cut,
        schedule=_schedule(config),
        all_reduce=config.all_reduce or AllReduceKind.TREE,
        num_chunks=config.chunks,
        warmup=config.warmup,
        microbatch=config.microbatch,
        num_microbatches=_num_microbatches(config, batch=batch),
        tied=tied,
        sync=config.chunks * tuple(island_tree(each) for each in held),
        sync_shared=island_tree({r: each for r, each in devices.items() if r % size in ends}),
        sync_all=island_tree(devices),
    )
    check_programs(plan)
    plan.train_schedule()  # refuses a schedule that cannot be made
    return plan


def _devices(config: PlanConfig, cluster: Cluster) -> tuple[int, ...]:
    """Return the devices that ranks may use, in the order of ranks."""
    index = {device.name: number for number, device in enumerate(cluster.devices)}
    for name, count in Counter(config.devices).items():
        if count > 1:
            raise PlanError(
                f"a device runs one rank: `plan.devices` names {name!r} {count} times; name it once"
            )
        if name not in index:
            near = get_close_matches(name, index, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"`jaxpipe topo show {cluster.name}`"
            raise PlanError(
                f"`plan.devices` names devices of cluster {cluster.name!r}, but {name!r} is none "
                f"of its {len(cluster)}: {hint}"
            )
    return tuple(index[name] for name in config.devices or index)


def _pipeline_ranks(config: PlanConfig) -> int:
    if config.stages % config.chunks:
        raise PlanError(
            f"every rank holds as many chunks: `plan.stages` is {config.stages} and `plan.chunks` "
            f"is {config.chunks}; make the one a multiple of the other"
        )
    return config.stages // config.chunks


def _schedule(config: PlanConfig) -> ScheduleKind | Schedule:
    if config.schedule_file is None:
        return config.schedule
    return read_schedule(Path(config.schedule_file), num_stages=config.stages)


def _num_microbatches(config: PlanConfig, *, batch: int) -> int:
    each = config.replicas * config.microbatch
    if batch % each:
        fitting = [n for n in (batch // each * each, -(-batch // each) * each) if n]
        raise PlanError(
            f"`train.batch` must be divisible by `plan.replicas` x `plan.microbatch` = "
            f"{config.replicas} x {config.microbatch} = {each}: it is {batch}; use "
            + " or ".join(map(str, fitting))
        )
    if (count := batch // each) > MAX_MICROBATCHES:
        raise PlanError(
            f"a step has at most {MAX_MICROBATCHES:,} microbatches: `train.batch` = {batch} makes "
            f"{count:,} of them; lower it, or raise `plan.microbatch`"
        )
    return count
