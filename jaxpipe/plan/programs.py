"""Check of a custom schedule against the rest of its plan."""

from jaxpipe.errors import PlanError
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import Op, ScheduleKind


def check_programs(plan: Plan) -> None:
    """Check that a custom schedule has the plan's ranks and microbatches.

    Raises:
        PlanError: it does not.
    """
    if isinstance(plan.schedule, ScheduleKind):
        return
    forwards = [i for program in plan.schedule for i in program if i.op is Op.FORWARD]
    num_microbatches = len(forwards) // plan.num_stages
    if len(plan.schedule) != plan.num_pipeline_ranks or num_microbatches != plan.num_microbatches:
        raise PlanError(
            f"a schedule has one row per rank, with all microbatches: `schedule` has "
            f"{len(plan.schedule)} rows and {num_microbatches} microbatches, the plan "
            f"{plan.num_pipeline_ranks} and {plan.num_microbatches}; make them equal"
        )
