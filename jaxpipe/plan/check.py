"""Checks that every plan must pass, wherever it comes from."""

from jaxpipe.collective import ranks
from jaxpipe.errors import PlanError
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
    # First: `num_pipeline_ranks` rounds down where chunks do not divide the stages.
    _check_size(plan)
    check_chunks(num_stages=plan.num_stages, num_chunks=plan.num_chunks)
    devices = [device for row in plan.placement for device in row]
    # A set of one length: an empty `placement` is refused here as well.
    if {len(row) for row in plan.placement} != {plan.num_pipeline_ranks}:
        raise PlanError(
            f"every replica holds all stages: the rows of `placement` have "
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
    in_trees = [ranks(tree) for tree in plan.sync]
    # Sorted: the order of ranks in a tree, and so its leader, is free.
    if [sorted(each) for each in in_trees] != stages:
        raise PlanError(
            f"gradients are all-reduced over the ranks of a stage: `sync` has {in_trees}, the "
            f"stages {stages}; name each rank once, at each stage that it holds"
        )
    all_ranks = sorted(ranks(plan.sync_all))
    # A set: with one stage, both ends are the same ranks.
    shared = sorted({*stages[0], *stages[-1]})
    if all_ranks != list(range(plan.num_ranks)) or sorted(ranks(plan.sync_shared)) != shared:
        raise PlanError(
            f"`sync_all` holds all {plan.num_ranks} ranks, `sync_shared` {shared}: they hold "
            f"{all_ranks} and {sorted(ranks(plan.sync_shared))}; name each rank once"
        )
    check_programs(plan)
    plan.train_schedule()  # raises if the schedule cannot be generated


def _check_size(plan: Plan) -> None:
    most = min(MAX_MICROBATCHES, _MAX_FORWARDS // max(1, plan.num_stages))
    if plan.num_microbatches > most:
        raise PlanError(
            f"a step has at most {most:,} microbatches with {plan.num_stages:,} stages: "
            f"`num_microbatches` is {plan.num_microbatches:,}; use a larger `microbatch`"
        )


def check_programs(plan: Plan) -> None:
    """Check that a custom schedule has the ranks and microbatches of the plan.

    Raises:
        PlanError: it has not.
    """
    if isinstance(plan.schedule, ScheduleKind):
        return
    forwards = [i for program in plan.schedule for i in program if i.op is Op.FORWARD]
    num_microbatches = len(forwards) // plan.num_stages
    if len(plan.schedule) != plan.num_pipeline_ranks or num_microbatches != plan.num_microbatches:
        raise PlanError(
            f"a schedule has a row per rank, with all microbatches: `schedule` has "
            f"{len(plan.schedule)} rows and {num_microbatches} microbatches, the plan "
            f"{plan.num_pipeline_ranks} and {plan.num_microbatches}; make them equal"
        )
