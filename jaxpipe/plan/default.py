"""The default plan: devices in the order of `plan.devices`, or of the cluster."""

from collections import Counter
from difflib import get_close_matches
from pathlib import Path

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import MAX_MICROBATCHES, check_programs
from jaxpipe.plan.partition import check_partition, even_partition
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.plan_config import PlanConfig
from jaxpipe.plan.sync import island_tree
from jaxpipe.schedule import Schedule, ScheduleKind, read_schedule
from jaxpipe.topo import Cluster


def default_plan(
    config: PlanConfig, cluster: Cluster, *, num_layers: int, batch: int, tied: bool
) -> Plan:
    """Return the plan in which rank r runs on the r-th device; the default all-reduce is a tree.

    Raises:
        PlanError: the devices, the layers, the batch or the warm-up do not fit the stages and
            replicas, or a named device does not exist or is named twice.
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
    # The ranks that hold the same stages, one of each replica.
    columns = [{r: devices[r] for r in range(p, num_ranks, size)} for p in range(size)]
    ends = (0, size - 1)  # the last stage is on the last rank, with any number of chunks
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
        # Stage p + k * size is on the ranks of stage p.
        sync=config.chunks * tuple(island_tree(each) for each in columns),
        sync_shared=island_tree({r: each for r, each in devices.items() if r % size in ends}),
        sync_all=island_tree(devices),
    )
    check_programs(plan)
    plan.train_schedule()  # raises if the schedule cannot be generated
    return plan


def _devices(config: PlanConfig, cluster: Cluster) -> tuple[int, ...]:
    """Return the devices for ranks, in the order of ranks."""
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
                f"`plan.devices` names devices of cluster {cluster.name!r}, but {name!r} is not "
                f"one of its {len(cluster)}: {hint}"
            )
    return tuple(index[name] for name in config.devices or index)


def _pipeline_ranks(config: PlanConfig) -> int:
    if config.stages % config.chunks:
        raise PlanError(
            f"every rank holds the same number of chunks: `plan.stages` is {config.stages} and "
            f"`plan.chunks` is {config.chunks}; make the one a multiple of the other"
        )
    return config.stages // config.chunks


def _schedule(config: PlanConfig) -> ScheduleKind | Schedule:
    if config.schedule_file is None:
        return config.schedule
    return read_schedule(Path(config.schedule_file), num_stages=config.stages)


def _num_microbatches(config: PlanConfig, *, batch: int) -> int:
    each = config.replicas * config.microbatch
    if batch % each:
        # Rounded down and up; 0 is no batch.
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
