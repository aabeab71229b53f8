"""The plan that a section `[plan]` decides, on the devices of `devices` or of the cluster."""

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from math import prod
from pathlib import Path
from typing import TypeAlias

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import MAX_MICROBATCHES, check_codecs, check_programs
from jaxpipe.plan.partition import Cut, check_partition, even_partition
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.plan_config import PlanConfig
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.schedule import Schedule, ScheduleKind, read_schedule
from jaxpipe.topo import Cluster

Partition: TypeAlias = Callable[[int, Sequence[tuple[int, ...]]], Cut]
"""Divides the layers among stages, from their number and the devices of each stage's ranks."""


def default_plan(
    config: PlanConfig,
    cluster: Cluster,
    *,
    num_layers: int,
    batch: int,
    tied: bool,
    partition: Partition | None = None,
) -> Plan:
    """Return the plan in which rank r runs on the r-th device; the default all-reduce is a tree.

    `partition` divides the layers where the section does not; as evenly as possible by default.

    Raises:
        PlanError: the section leaves stages, replicas, microbatch or schedule free; the devices,
            the layers, the batch or the warm-up do not fit the stages and replicas; or a named
            device does not exist or is named twice.
    """
    if not config.is_decided or config.microbatch is None:
        decisions = _DECISIONS[2:] if config.has_shape else _DECISIONS  # `cuts` have a shape
        free = [name for name in decisions if getattr(config, name) is None]
        raise PlanError(f"`plan.{free[0]}` is not set: set it, or let `jaxpipe plan` search it")
    sizes = [_pipeline_ranks(size, config) for size in _num_stages(config)]
    used = iter(devices_used(config, cluster, num_ranks=sum(sizes)))
    rows = [tuple(islice(used, size)) for size in sizes]
    cuts = _cuts(config, rows, num_layers=num_layers, partition=partition)
    counts = _num_microbatches(config, batch=batch, num_replicas=len(cuts))
    plan = Plan(
        pipelines=tuple(
            Pipeline(
                devices=row,
                cut=cut,
                num_microbatches=count,
                microbatch=config.microbatch,
                warmup=config.warmup,
                codecs=config.boundaries or (),
            )
            for row, cut, count in zip(rows, cuts, counts, strict=True)
        ),
        schedule=_schedule(config),
        all_reduce=config.all_reduce or AllReduceKind.TREE,
        num_chunks=config.chunks or 1,
        tied=tied,
    )
    plan = with_island_trees(plan, cluster.devices)
    _check_programs(plan, has_shares=config.shares is not None)
    return plan


def _check_programs(plan: Plan, *, has_shares: bool) -> None:
    _check_groups(plan, has_shares=has_shares)
    try:
        for pipeline in plan.pipelines:
            check_codecs(pipeline, num_chunks=plan.num_chunks)
        check_programs(plan)
    except PlanError as error:
        raise PlanError(_in_fields(str(error))) from error


_FIELDS = {
    "num_chunks": "plan.chunks",
    "num_stages": "plan.stages",
    "warmup": "plan.warmup",
    "codecs": "plan.boundaries",
    "schedule": "plan.schedule_file",
}


def _in_fields(words: str) -> str:
    """Return the words of an error about a plan with the fields of the section.

    >>> _in_fields("`num_chunks` must be 1, and `num_microbatches` (3) more")
    '`plan.chunks` must be 1, and the microbatches of a replica (3) more'
    """
    for name, field in _FIELDS.items():
        words = words.replace(f"`{name}`", f"`{field}`")
    return words.replace("`num_microbatches`", "the microbatches of a replica")


def _check_groups(plan: Plan, *, has_shares: bool) -> None:
    """Check that the ranks of a pipeline divide its microbatches, if its schedule groups them."""
    if plan.schedule is not ScheduleKind.INTERLEAVED:
        return
    for replica, pipeline in enumerate(plan.pipelines):
        num_ranks, microbatch = pipeline.num_ranks, pipeline.microbatch
        if pipeline.num_microbatches % num_ranks == 0:
            continue
        if has_shares:
            raise PlanError(
                f"`plan.shares` gives replica {replica} {pipeline.num_samples} samples, which must "
                f"be {_multiple(pipeline.num_samples, ranks=num_ranks, microbatch=microbatch)}"
            )
        sizes = {"replicas": plan.num_replicas, "ranks": num_ranks, "microbatch": microbatch}
        raise PlanError(f"`train.batch` ({plan.batch}) must be {_multiple(plan.batch, **sizes)}")


def _multiple(samples: int, **sizes: int) -> str:
    """Return what a number of samples must be a multiple of, and the nearest such numbers."""
    step = prod(sizes.values())
    fitting = [n for n in (samples // step * step, -(-samples // step) * step) if n]
    return (
        f"a multiple of {' x '.join(sizes)} = {' x '.join(map(str, sizes.values()))} = {step} with "
        f"{ScheduleKind.INTERLEAVED}; use {' or '.join(map(str, fitting))}"
    )


_DECISIONS = ("stages", "replicas", "microbatch", "schedule")


def _num_stages(config: PlanConfig) -> tuple[int, ...]:
    """Return the stages of each replica."""
    if config.cuts is not None:
        return tuple(map(len, config.cuts))
    assert config.stages is not None, config
    assert config.replicas is not None, config
    return (config.stages,) * config.replicas


def _cuts(
    config: PlanConfig,
    rows: Sequence[tuple[int, ...]],
    *,
    num_layers: int,
    partition: Partition | None,
) -> tuple[Cut, ...]:
    """Return the partition of each replica, whose ranks have the devices of a row."""
    if config.cuts is not None and config.cut is not None:
        raise PlanError(
            "`plan.cut` and `plan.cuts` are both set: the one is for all replicas, the other for "
            "each; remove one of them"
        )
    sizes = _num_stages(config)
    if config.cuts is not None:
        for cut in config.cuts:
            check_partition(cut, num_layers=num_layers, num_stages=len(cut), field="plan.cuts")
        return config.cuts
    if config.cut is not None or partition is None or sizes[0] > num_layers:
        cut = config.cut or even_partition(num_layers=num_layers, num_stages=sizes[0])
    else:
        cut = partition(sizes[0], rows)
    check_partition(cut, num_layers=num_layers, num_stages=sizes[0])
    return (cut,) * len(sizes)


def devices_used(config: PlanConfig, cluster: Cluster, *, num_ranks: int) -> tuple[int, ...]:
    """Return the device of each rank.

    Raises:
        PlanError: a named device does not exist or is named twice, or there are too few.
    """
    used = devices_of(config, cluster)
    if num_ranks > len(used):
        chunks = f" / {config.chunks} chunks" if (config.chunks or 1) > 1 else ""
        named = "`plan.devices` names" if config.devices else f"cluster {cluster.name!r} has"
        product = (
            f"`plan.stages` x `plan.replicas` = {config.stages}{chunks} x {config.replicas}"
            if config.cuts is None
            else f"the stages of `plan.cuts`{chunks}"
        )
        raise PlanError(
            f"{product} = {num_ranks} ranks need as many devices, but {named} {len(used)}; use "
            "fewer, or a larger `plan.cluster`"
        )
    return used[:num_ranks]


def devices_of(config: PlanConfig, cluster: Cluster) -> tuple[int, ...]:
    """Return the devices for ranks, in the order of ranks.

    Raises:
        PlanError: a named device does not exist or is named twice.
    """
    index = {device.name: number for number, device in enumerate(cluster.devices)}
    for name, count in Counter(config.devices).items():
        if count > 1:
            raise PlanError(
                f"`plan.devices` names {name!r} {count} times, and a device runs one rank; name it "
                "once"
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
    chunks = config.chunks or 1
    if num_stages % chunks:
        field = "plan.stages" if config.cuts is None else "plan.cuts"
        raise PlanError(
            f"`{field}` ({num_stages}) must be a multiple of `plan.chunks` ({chunks}): every rank "
            "holds as many stages"
        )
    return num_stages // chunks


def _schedule(config: PlanConfig) -> ScheduleKind | Schedule:
    if config.schedule_file is None:
        assert config.schedule is not None, config
        return config.schedule
    try:
        return read_schedule(Path(config.schedule_file), num_stages=_num_stages(config)[0])
    except PlanError as error:
        raise PlanError(f"`plan.schedule_file`: {error}") from error


def _num_microbatches(config: PlanConfig, *, batch: int, num_replicas: int) -> tuple[int, ...]:
    """Return the number of microbatches of each replica."""
    if config.shares is not None:
        counts = _num_microbatches_of(config.shares, config, batch=batch, num_replicas=num_replicas)
    else:
        counts = (_equal_num_microbatches(config, batch=batch, num_replicas=num_replicas),)
        counts *= num_replicas
    if (count := max(counts)) > MAX_MICROBATCHES:
        raise PlanError(
            f"`train.batch` ({batch}) makes {count:,} microbatches, and a step has at most "
            f"{MAX_MICROBATCHES:,}; lower it, or raise `plan.microbatch`"
        )
    return counts


def _equal_num_microbatches(config: PlanConfig, *, batch: int, num_replicas: int) -> int:
    assert config.microbatch is not None, config
    divisor = num_replicas * config.microbatch
    if batch % divisor:
        # Rounded down and up; 0 is no batch.
        fitting = [n for n in (batch // divisor * divisor, -(-batch // divisor) * divisor) if n]
        raise PlanError(
            f"`train.batch` must be divisible by `plan.replicas` x `plan.microbatch` = "
            f"{num_replicas} x {config.microbatch} = {divisor}: it is {batch}; use "
            + " or ".join(map(str, fitting))
        )
    return batch // divisor


def _num_microbatches_of(
    shares: tuple[int, ...], config: PlanConfig, *, batch: int, num_replicas: int
) -> tuple[int, ...]:
    assert config.microbatch is not None, config
    given = f"`plan.shares` is {list(shares)}"
    if len(shares) != num_replicas:
        raise PlanError(f"{given}: give a share to each of the {num_replicas} replicas")
    if min(shares) < 1:
        empty = shares.index(min(shares))
        raise PlanError(
            f"{given}: replica {empty} has {shares[empty]} samples; give it at least 1, or leave "
            "the replica out"
        )
    if sum(shares) != batch:
        raise PlanError(f"{given}, which adds up to {sum(shares)}: `train.batch` is {batch}")
    if any(share % config.microbatch for share in shares):
        raise PlanError(
            f"{given}: each share must be a multiple of `plan.microbatch`, {config.microbatch}"
        )
    return tuple(share // config.microbatch for share in shares)
