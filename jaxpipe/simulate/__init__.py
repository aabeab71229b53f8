"""Simulation: an event-driven simulator of plans."""

from jaxpipe.network import MessageCosts
from jaxpipe.simulate.breakdown import (
    StepBreakdown,
    step_breakdown,
)
from jaxpipe.simulate.choose_all_reduce import (
    fastest_all_reduce,
    gradient_sync_s,
)
from jaxpipe.simulate.constants import (
    Constants,
    NetworkConstants,
    Speeds,
    dtfm_constants,
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
    step_bound_s,
)
from jaxpipe.simulate.replay import (
    replay_step,
)
from jaxpipe.simulate.stage_costs import stage_costs
from jaxpipe.simulate.step_seconds import step_seconds

__all__ = [
    "IDEAL",
    "Conditions",
    "Constants",
    "MessageCosts",
    "NetworkConstants",
    "Overheads",
    "Phase",
    "Speeds",
    "StepBreakdown",
    "StepEnds",
    "StepModel",
    "check_power",
    "check_prices",
    "dtfm_constants",
    "extrapolated_step_s",
    "fastest_all_reduce",
    "gradient_sync_s",
    "plan_step",
    "plan_step_s",
    "replay_step",
    "simulate",
    "simulate_ends",
    "stage_costs",
    "step_bound_s",
    "step_breakdown",
    "step_dollars",
    "step_objective",
    "step_seconds",
    "step_watt_hours",
]
