"""How long: an event-driven simulator of plans, and the published systems as plans."""

from jaxpipe.simulate.auto import (
    Candidate,
    Search,
    auto_schedule,
    named_schedules,
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
from jaxpipe.simulate.constants import (
    Constants,
    NetworkConstants,
    Speeds,
    dtfm_constants,
)
from jaxpipe.simulate.dtfm import (
    Placement,
    dtfm_job,
    scheduled,
    unscheduled,
)
from jaxpipe.simulate.events import (
    simulate,
)
from jaxpipe.simulate.fastest_sum import (
    fastest_all_reduce,
    sums_s,
)
from jaxpipe.simulate.foreseen import (
    foreseen_step_s,
    step_objective,
)
from jaxpipe.simulate.job import (
    Job,
    Phase,
)
from jaxpipe.simulate.megatron import (
    Split,
    megatron_job,
)
from jaxpipe.simulate.other_links import (
    with_slower_links,
    without_network,
)
from jaxpipe.simulate.own import (
    Choices,
    own_job,
)
from jaxpipe.simulate.planned import (
    IDEAL,
    Conditions,
    Overheads,
    plan_job,
    planned_step_s,
)
from jaxpipe.simulate.replay import (
    replay_job,
)
from jaxpipe.simulate.split import (
    StepSplit,
    step_split,
)
from jaxpipe.simulate.step import (
    StepTime,
    step_time,
)
from jaxpipe.simulate.summed import (
    all_reduce_messages,
    share_sum,
)
from jaxpipe.simulate.systems import (
    System,
    system_job,
)
from jaxpipe.simulate.wire import (
    Wire,
)
from jaxpipe.simulate.workload import (
    Workload,
)
from jaxpipe.simulate.zero import (
    zero_job,
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
