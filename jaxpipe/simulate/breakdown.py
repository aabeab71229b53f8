"""Time breakdown of a planned step: compute, update, bubble, activations, gradients.

Five parts that add up, each the mean of ranks or the difference of two simulations::

    compute       the mean rank's forwards and backwards
    update        the mean rank's optimizer, where the profile has measured it
    bubble        waiting for other ranks on a network without latency or bandwidth limits
    activations   added by messages between stages on the cluster's network
    gradients     added by all-reduces, as far as compute does not hide them
"""

from dataclasses import dataclass, replace
from math import isclose

from jaxpipe.plan import Plan
from jaxpipe.simulate.engine.simulator import simulate, simulate_ends
from jaxpipe.simulate.plan_step import Conditions, Overheads, end_s, plan_step
from jaxpipe.topo import without_network
from jaxpipe.trace import Lane, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """The simulated seconds of a step by cause, and its trace."""

    compute_s: float
    update_s: float
    bubble_s: float
    activations_s: float
    gradients_s: float
    trace: Trace

    @property
    def step_s(self) -> float:
        """The seconds of the whole step."""
        return sum(self.seconds_by_cause.values())

    @property
    def seconds_by_cause(self) -> dict[str, float]:
        """The seconds of each cause, in the order of the output."""
        return {
            "compute": self.compute_s,
            "update": self.update_s,
            "bubble": self.bubble_s,
            "activations": self.activations_s,
            "gradients": self.gradients_s,
        }


def step_breakdown(plan: Plan, conditions: Conditions) -> StepBreakdown:
    """Return the breakdown of a step of a plan; simulates it three times."""
    job = plan_step(plan, conditions)
    trace = simulate(job)
    # Reductions without a collective take no time.
    alone_s = simulate_ends(replace(job, collectives={}, gathers=())).last_s
    free = replace(conditions, cluster=without_network(conditions.cluster))
    # Without the network's overheads too; the factor on compute has to stay.
    free = replace(free, overheads=Overheads(local_factor=conditions.overheads.local_factor))
    free_job = replace(plan_step(plan, free), collectives={}, gathers=())
    free_s = simulate_ends(free_job).last_s
    compute_s, update_s = (
        sum(span.end_s - span.start_s for span in trace.spans if span.lane is lane) / plan.num_ranks
        for lane in (Lane.COMPUTE, Lane.UPDATE)
    )
    # Computes of ranks of several devices have the messages between these, which are free there.
    free_s = max(free_s, compute_s + update_s)
    # The differences telescope: all parts add up to the end of `trace`.
    return StepBreakdown(
        compute_s=compute_s,
        update_s=update_s,
        bubble_s=max(0.0, free_s - compute_s - update_s),  # rounding alone makes it negative
        activations_s=0.0 if isclose(alone_s, free_s, rel_tol=1e-12) else alone_s - free_s,
        gradients_s=end_s(trace) - alone_s,
        trace=trace,
    )
