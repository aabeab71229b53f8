"""Checks that every plan must pass, wherever it comes from."""

from collections.abc import Iterable

from jaxpipe.collective import CodecKind, ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan.group import Sharing
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import Op, ScheduleKind, check_chunks

MAX_MICROBATCHES = 2**13
_MAX_FORWARDS = 2**20
"""Limits, as a schedule is generated and checked instruction by instruction."""


def check_plan(plan: Plan, *, num_devices: int) -> None:
    """Check that each rank has its own device, each all-reduce its ranks, and the schedule runs.

    Raises:
        PlanError: it does not.
    """
    # First: microbatches are what takes time below.
    for pipeline in plan.pipelines:
        _check_size(pipeline)
        check_chunks(num_stages=pipeline.num_stages, num_chunks=plan.num_chunks)
    _check_pipelines(plan)
    devices = [device for group in plan.groups for device in group]
    if len(set(devices)) < len(devices) or not set(devices) <= set(range(num_devices)):
        placement = plan.groups if plan.has_groups else plan.placement
        raise PlanError(
            f"`placement` {placement} must name each of the {num_devices} devices at most once, "
            "counted from 0"
        )
    _check_trees(plan)
    check_programs(plan)


def _check_pipelines(plan: Plan) -> None:
    """Check that each replica holds all layers, on its devices."""
    sizes = [pipeline.num_stages // plan.num_chunks for pipeline in plan.pipelines]
    # An empty `placement` is refused here as well.
    if [pipeline.num_ranks for pipeline in plan.pipelines] != sizes or not sizes:
        raise PlanError(
            f"`placement` has rows of {[len(row) for row in plan.placement]} devices, `cut` has "
            f"{_each(pipeline.num_stages for pipeline in plan.pipelines)} stages, and "
            f"`num_chunks` is {plan.num_chunks}: every replica must hold all stages; make devices "
            "x `num_chunks` the stages"
        )
    for pipeline in plan.pipelines:
        if len(pipeline.peers) not in (0, pipeline.num_ranks):
            raise PlanError(
                f"`peers` has {len(pipeline.peers)} rows for {pipeline.num_ranks} ranks; give one "
                "for each, or none at all"
            )
        _check_data_parts(pipeline, plan.sharing)
        check_codecs(pipeline, num_chunks=plan.num_chunks)
    layers = [sum(pipeline.cut) for pipeline in plan.pipelines]
    if len(set(layers)) > 1 or min(min(one.cut, default=0) for one in plan.pipelines) < 1:
        raise PlanError(
            f"`cut` {[pipeline.cut for pipeline in plan.pipelines]} must hold the same layers in "
            f"every replica, {layers} of them, and at least one in each stage"
        )


def _check_data_parts(pipeline: Pipeline, sharing: Sharing) -> None:
    """Check that data parts divide the devices of each rank, if any has some."""
    parts = pipeline.data_parts
    if parts and sharing not in (Sharing.TENSOR, Sharing.SEQUENCE):
        raise PlanError(
            f"`data_parts` {list(parts)} must be left out with `sharing` {sharing.value}, where "
            "all devices of a rank divide samples; leave it out, or share by "
            f"{Sharing.TENSOR.value}"
        )
    if len(parts) not in (0, pipeline.num_ranks) or any(
        num_parts < 1 or size % num_parts
        for size, num_parts in zip(pipeline.degrees, parts, strict=False)
    ):
        raise PlanError(
            f"`data_parts` {list(parts)} must divide the devices of each rank, "
            f"{list(pipeline.degrees)}; give one for each rank"
        )


def check_codecs(pipeline: Pipeline, *, num_chunks: int) -> None:
    """Check that each boundary between stages has a codec, if any has.

    Raises:
        PlanError: some have none, or one that is not for activations.
    """
    codecs = pipeline.codecs
    if codecs and num_chunks > 1:
        raise PlanError(
            f"`codecs` ({', '.join(codecs)}) must be the same at all boundaries with several "
            f"stages per rank (`num_chunks` {num_chunks}); set `comm.boundary` instead"
        )
    if len(codecs) not in (0, pipeline.num_stages - 1):
        raise PlanError(
            f"`codecs` has one for each boundary between stages, or none at all: it has "
            f"{len(codecs)} for {pipeline.num_stages} stages"
        )
    if dropping := [kind for kind in codecs if kind.facts.needs_feedback]:
        others = [kind for kind in CodecKind if not kind.facts.needs_feedback]
        raise PlanError(
            f"`codecs` must not have {dropping[0]}: an activation left out is lost, without error "
            f"feedback; choose from {', '.join(others)}"
        )


def _check_trees(plan: Plan) -> None:
    """Check that each all-reduce is over the ranks that hold its values."""
    holders = [sorted(plan.holders(segment)) for segment in range(len(plan.segments))]
    in_trees = [ranks(tree) for tree in plan.sync]
    # Sorted: the order of ranks in a tree, and so its leader, is free.
    if [sorted(tree_ranks) for tree_ranks in in_trees] != holders:
        raise PlanError(
            f"`sync` {in_trees} must name each rank once for each stage or part that it holds "
            f"({holders}), since gradients are all-reduced over those ranks"
        )
    all_ranks, shared = sorted(ranks(plan.sync_all)), list(plan.embedding_holders())
    if all_ranks != list(range(plan.num_ranks)) or sorted(ranks(plan.sync_shared)) != shared:
        raise PlanError(
            f"`sync_all` holds all {plan.num_ranks} ranks, `sync_shared` {shared}: they hold "
            f"{all_ranks} and {sorted(ranks(plan.sync_shared))}; name each rank once"
        )


def most_microbatches(num_stages: int) -> int:
    """Return how many microbatches a step of a replica may have: its schedule is a list."""
    return min(MAX_MICROBATCHES, _MAX_FORWARDS // max(1, num_stages))


def _check_size(pipeline: Pipeline) -> None:
    most = most_microbatches(pipeline.num_stages)
    if pipeline.num_microbatches > most:
        raise PlanError(
            f"`num_microbatches` ({pipeline.num_microbatches:,}) must be at most {most:,} with "
            f"{pipeline.num_stages:,} stages; use a larger `microbatch`"
        )


def _each(numbers: Iterable[int]) -> str:
    """Return the numbers of replicas: one number, if they are equal."""
    return " ".join(map(str, dict.fromkeys(numbers)))


def check_programs(plan: Plan) -> None:
    """Check that schedules can be generated, or that a custom one is of the plan.

    Raises:
        PlanError: they cannot, or a custom schedule has other ranks or microbatches.
    """
    if isinstance(plan.schedule, ScheduleKind):
        # Raises if a schedule cannot be generated: once for replicas that are alike.
        by_shape = {pipeline.shape: replica for replica, pipeline in enumerate(plan.pipelines)}
        for replica in by_shape.values():
            plan.train_schedule(replica=replica)
        return
    if not plan.is_even:
        raise PlanError(
            f"`schedule` has {len(plan.schedule)} rows, and a custom schedule is one for all "
            "replicas, which differ in this plan; name a schedule, such as "
            f"{ScheduleKind.ONE_F_ONE_B}"
        )
    forwards = [i for program in plan.schedule for i in program if i.op is Op.FORWARD]
    num_microbatches = len(forwards) // plan.num_stages
    if len(plan.schedule) != plan.num_pipeline_ranks or num_microbatches != plan.num_microbatches:
        raise PlanError(
            f"`schedule` has {len(plan.schedule)} rows and {num_microbatches} microbatches, and "
            f"must have those of the plan, {plan.num_pipeline_ranks} ranks and "
            f"{plan.num_microbatches} microbatches"
        )
    plan.train_schedule()
