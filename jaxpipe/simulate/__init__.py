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
from jaxpipe.simulate.job import (
    Job,
    Phase,
)
from jaxpipe.simulate.megatron import (
    Split,
    megatron_job,
)
from jaxpipe.simulate.own import (
    Choices,
    own_job,
)
from jaxpipe.simulate.step import (
    StepTime,
    step_time,
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
    "Algorithm",
    "Candidate",
    "Choices",
    "Collective",
    "Constants",
    "Job",
    "NetworkConstants",
    "Phase",
    "Placement",
    "Search",
    "Speeds",
    "Split",
    "StepTime",
    "System",
    "Transfer",
    "Wire",
    "Workload",
    "auto_schedule",
    "barrier",
    "binary_tree",
    "central_server",
    "chain",
    "dtfm_constants",
    "dtfm_job",
    "megatron_job",
    "named_schedules",
    "own_job",
    "ring",
    "scheduled",
    "sharded_server",
    "simulate",
    "step_time",
    "system_job",
    "unscheduled",
    "zero_job",
]
