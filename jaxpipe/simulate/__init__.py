"""How long: an event-driven simulator of plans, and the published systems as plans."""

from jaxpipe.simulate.breakdown import (
    StepSplit,
    step_split,
)
from jaxpipe.simulate.choose_all_reduce import (
    fastest_all_reduce,
    sums_s,
)
from jaxpipe.simulate.collective import (
    Algorithm,
    Collective,
    Transfer,
    barrier,
    binary_tree,
    central_server,
    chain,
    ring,
    sharded_server,
    tree_sum,
)
from jaxpipe.simulate.engine.message_costs import (
    Wire,
)
from jaxpipe.simulate.engine.simulator import (
    simulate,
)
from jaxpipe.simulate.engine.step_model import (
    Job,
    Phase,
)
from jaxpipe.simulate.extrapolate import (
    foreseen_step_s,
    step_objective,
)
from jaxpipe.simulate.plan_step import (
    IDEAL,
    Conditions,
    Overheads,
    plan_job,
    planned_step_s,
)
from jaxpipe.simulate.published.constants import (
    Constants,
    NetworkConstants,
    Speeds,
    dtfm_constants,
)
from jaxpipe.simulate.published.dtfm import (
    Placement,
    dtfm_job,
    scheduled,
    unscheduled,
)
from jaxpipe.simulate.published.jaxpipe_on_dtfm import (
    Choices,
    own_job,
)
from jaxpipe.simulate.published.megatron import (
    Split,
    megatron_job,
)
from jaxpipe.simulate.published.registry import (
    System,
    system_job,
)
from jaxpipe.simulate.published.step_time import (
    StepTime,
    step_time,
)
from jaxpipe.simulate.published.workload import (
    Workload,
)
from jaxpipe.simulate.published.zero3 import (
    zero_job,
)
from jaxpipe.simulate.replay import (
    replay_job,
)
from jaxpipe.simulate.schedule_search import (
    Candidate,
    Search,
    auto_schedule,
    named_schedules,
)
from jaxpipe.simulate.summed import (
    all_reduce_messages,
    share_sum,
)
from jaxpipe.simulate.what_if import (
    with_slower_links,
    without_network,
)

__all__ = [
    "IDEAL",
    "Algorithm",
    "Candidate",
    "Choices",
    "Collective",
    "Conditions",
    "Constants",
    "Job",
    "NetworkConstants",
    "Overheads",
    "Phase",
    "Placement",
    "Search",
    "Speeds",
    "Split",
    "StepSplit",
    "StepTime",
    "System",
    "Transfer",
    "Wire",
    "Workload",
    "all_reduce_messages",
    "auto_schedule",
    "barrier",
    "binary_tree",
    "central_server",
    "chain",
    "dtfm_constants",
    "dtfm_job",
    "fastest_all_reduce",
    "foreseen_step_s",
    "megatron_job",
    "named_schedules",
    "own_job",
    "plan_job",
    "planned_step_s",
    "replay_job",
    "ring",
    "scheduled",
    "sharded_server",
    "share_sum",
    "simulate",
    "step_objective",
    "step_split",
    "step_time",
    "sums_s",
    "system_job",
    "tree_sum",
    "unscheduled",
    "with_slower_links",
    "without_network",
    "zero_job",
]
