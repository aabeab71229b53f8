"""The default plan: devices in the order of `plan.devices`, or of the cluster."""

from collections import Counter
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import MAX_MICROBATCHES, check_programs
from jaxpipe.plan.partition import Cut, check_partition, even_partition
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.plan_config import PlanConfig
from jaxpipe.plan.sync import with_island_trees
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
    cuts = _cuts(config, num_layers=num_layers)
    sizes = [_pipeline_ranks(len(cut), config) for cut in cuts]
    used = iter(_used(config, cluster, num_ranks=sum(sizes)))
    counts = _num_microbatches(config, batch=batch, num_replicas=len(cuts))
    plan = Plan(
        pipelines=tuple(
            Pipeline(
                devices=tuple(islice(used, size)),
                cut=cut,
                num_microbatches=count,
                microbatch=config.microbatch,
                warmup=config.warmup,
            )
            for size, cut, count in zip(sizes, cuts, counts, strict=True)
        ),
        schedule=_schedule(config),
        all_reduce=config.all_reduce or AllReduceKind.TREE,
        num_chunks=config.chunks,
        tied=tied,
    )
    plan = with_island_trees(plan, cluster.devices)
    check_programs(plan)
    return plan


def _cuts(config: PlanConfig, *, num_layers: int) -> tuple[Cut, ...]:
    """Return the partition of each replica."""
    if config.cuts is not None and config.cut is not None:
        raise PlanError(
            "one partition holds for all replicas, or each has its own: `plan.cut` and `plan.cuts` "
            "are both given; remove one of them"
        )
    if config.cuts is not None:
        for cut in config.cuts:
            check_partition(cut, num_layers=num_layers, num_stages=len(cut), field="plan.cuts")
        return config.cuts
    cut = config.cut or even_partition(num_layers=num_layers, num_stages=config.stages)
    check_partition(cut, num_layers=num_layers, num_stages=config.stages)
    return (cut,) * config.replicas


def _used(config: PlanConfig, cluster: Cluster, *, num_ranks: int) -> tuple[int, ...]:
    """Return the device of each rank."""
    used = _devices(config, cluster)
    if num_ranks > len(used):
        chunks = f" / {config.chunks} chunks" if config.chunks > 1 else ""
        named = "`plan.devices` names" if config.devices else f"cluster {cluster.name!r} has"
        product = (
            f"`plan.stages` x `plan.replicas` = {config.stages}{chunks} x {config.replicas}"
            if config.cuts is None
            else f"the stages of `plan.cuts`{chunks}"
        )
        raise PlanError(
            f"each rank needs a device: {product} = {num_ranks}, but {named} {len(used)}; use "
            "fewer, or a larger `plan.cluster`"
        )
    return used[:num_ranks]


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


def _pipeline_ranks(num_stages: int, config: PlanConfig) -> int:
    if num_stages % config.chunks:
        field = "plan.stages" if config.cuts is None else "plan.cuts"
        raise PlanError(
            f"every rank holds the same number of chunks: `{field}` is {num_stages} and "
            f"`plan.chunks` is {config.chunks}; make the one a multiple of the other"
        )
    return num_stages // config.chunks


def _schedule(config: PlanConfig) -> ScheduleKind | Schedule:
    if config.schedule_file is None:
        return config.schedule
    return read_schedule(Path(config.schedule_file), num_stages=config.stages)


def _num_microbatches(config: PlanConfig, *, batch: int, num_replicas: int) -> tuple[int, ...]:
    """Return the number of microbatches of each replica."""
    if config.shares is not None:
        counts = _num_microbatches_of(config.shares, config, batch=batch, num_replicas=num_replicas)
    else:
        counts = (_equal_num_microbatches(config, batch=batch, num_replicas=num_replicas),)
        counts *= num_replicas
    if (count := max(counts)) > MAX_MICROBATCHES:
        raise PlanError(
            f"a step has at most {MAX_MICROBATCHES:,} microbatches: `train.batch` = {batch} makes "
            f"{count:,} of them; lower it, or raise `plan.microbatch`"
        )
    return counts


def _equal_num_microbatches(config: PlanConfig, *, batch: int, num_replicas: int) -> int:
    each = num_replicas * config.microbatch
    if batch % each:
        # Rounded down and up; 0 is no batch.
        fitting = [n for n in (batch // each * each, -(-batch // each) * each) if n]
        raise PlanError(
            f"`train.batch` must be divisible by `plan.replicas` x `plan.microbatch` = "
            f"{num_replicas} x {config.microbatch} = {each}: it is {batch}; use "
            + " or ".join(map(str, fitting))
        )
    return batch // each


def _num_microbatches_of(
    shares: tuple[int, ...], config: PlanConfig, *, batch: int, num_replicas: int
) -> tuple[int, ...]:
    if len(shares) != num_replicas or sum(shares) != batch or min(shares) < 1:
        raise PlanError(
            f"the shares of all replicas add up to the batch: `plan.shares` is {list(shares)} for "
            f"{num_replicas} replicas and `train.batch` {batch}; give each replica its samples"
        )
    if any(share % config.microbatch for share in shares):
        raise PlanError(
            f"a share is a number of whole microbatches: `plan.shares` is {list(shares)}, "
            f"`plan.microbatch` {config.microbatch}; make each a multiple of it"
        )
    return tuple(share // config.microbatch for share in shares)
