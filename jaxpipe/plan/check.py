"""Laws that every plan obeys, wherever it came from."""

from jaxpipe.collective import ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import Op, ScheduleKind, check_chunks


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


def check_programs(plan: Plan) -> None:
    """Check that a schedule without a name has the plan's ranks and microbatches.

    Raises:
        PlanError: it has not.
    """
    if isinstance(plan.schedule, ScheduleKind):
        return
    forwards = [i for program in plan.schedule for i in program if i.op is Op.FORWARD]
    num_microbatches = len(forwards) // plan.num_stages
    if len(plan.schedule) != plan.num_pipeline_ranks or num_microbatches != plan.num_microbatches:
        raise PlanError(
            f"a schedule has a row to a rank, with all microbatches: `schedule` has "
            f"{len(plan.schedule)} rows and {num_microbatches} microbatches, the plan "
            f"{plan.num_pipeline_ranks} and {plan.num_microbatches}; make them equal"
        )
