"""Simulation: an event-driven simulator of plans, and published systems as plans."""

from jaxpipe.network import MessageCosts
from jaxpipe.simulate.breakdown import (
    StepBreakdown,
    step_breakdown,
)
from jaxpipe.simulate.choose_all_reduce import (
    fastest_all_reduce,
    gradient_sync_s,
)
from jaxpipe.simulate.dollars import (
    check_prices,
    step_dollars,
)
from jaxpipe.simulate.energy import (
    check_power,
    step_watt_hours,
)
from jaxpipe.simulate.engine.simulator import (
    StepEnds,
    simulate,
    simulate_ends,
)
from jaxpipe.simulate.engine.step_model import (
    Phase,
    StepModel,
)
from jaxpipe.simulate.extrapolate import (
    extrapolated_step_s,
    step_objective,
)
from jaxpipe.simulate.plan_step import (
    IDEAL,
    Conditions,
    Overheads,
    plan_step,
    plan_step_s,
)
from jaxpipe.simulate.published.constants import (
    Constants,
    NetworkConstants,
    Speeds,
    dtfm_constants,
)
from jaxpipe.simulate.published.dtfm import (
    Algorithm,
    Placement,
    along,
    dtfm_step,
    scheduled,
    unscheduled,
)
from jaxpipe.simulate.published.jaxpipe_on_dtfm import (
    Choices,
    jaxpipe_step,
)
from jaxpipe.simulate.published.megatron import (
    MegatronLayout,
    megatron_step,
)
from jaxpipe.simulate.published.step_time import (
    StepTime,
    step_seconds,
    step_time,
)
from jaxpipe.simulate.published.systems import (
    System,
    num_devices_used,
    system_peak_bytes,
    system_step,
)
from jaxpipe.simulate.published.workload import (
    Workload,
)
from jaxpipe.simulate.published.zero3 import (
    zero3_step,
)
from jaxpipe.simulate.replay import (
    replay_step,
)
from jaxpipe.simulate.schedule_search import (
    Candidate,
    Search,
    auto_schedule,
    named_schedules,
)

__all__ = [
    "IDEAL",
    "Algorithm",
    "Candidate",
    "Choices",
    "Conditions",
    "Constants",
    "MegatronLayout",
    "MessageCosts",
    "NetworkConstants",
    "Overheads",
    "Phase",
    "Placement",
    "Search",
    "Speeds",
    "StepBreakdown",
    "StepEnds",
    "StepModel",
    "StepTime",
    "System",
    "Workload",
    "along",
    "auto_schedule",
    "check_power",
    "check_prices",
    "dtfm_constants",
    "dtfm_step",
    "extrapolated_step_s",
    "fastest_all_reduce",
    "gradient_sync_s",
    "jaxpipe_step",
    "megatron_step",
    "named_schedules",
    "num_devices_used",
    "plan_step",
    "plan_step_s",
    "replay_step",
    "scheduled",
    "simulate",
    "simulate_ends",
    "step_breakdown",
    "step_dollars",
    "step_objective",
    "step_seconds",
    "step_time",
    "step_watt_hours",
    "system_peak_bytes",
    "system_step",
    "unscheduled",
    "zero3_step",
]
