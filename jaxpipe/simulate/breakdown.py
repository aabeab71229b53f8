"""Where the seconds of a planned step go: computing, bubble, activations, gradients.

Five parts that add up, each the mean of ranks or the difference of two simulations::

    compute       the mean rank's forwards and backwards
    update        the mean rank's optimizer, where the profile has measured it
    bubble        what a network without latency and of endless bandwidth adds: waiting in order
    activations   what messages between stages add on the real network
    gradients     what the sums over ranks add, as far as nothing hides them
"""

from dataclasses import dataclass, replace

from jaxpipe.plan import Plan
from jaxpipe.simulate.engine.simulator import simulate
from jaxpipe.simulate.plan_step import Conditions, Overheads, end_s, plan_step
from jaxpipe.simulate.what_if import without_network
from jaxpipe.trace import Lane, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """The simulated seconds of a step, by what they are spent on, and the trace of the step."""

    compute_s: float
    update_s: float
    bubble_s: float
    activations_s: float
    gradients_s: float
    trace: Trace

    @property
    def step_s(self) -> float:
        """All of them."""
        both_s = self.compute_s + self.update_s
        return both_s + self.bubble_s + self.activations_s + self.gradients_s


def step_breakdown(plan: Plan, conditions: Conditions) -> StepBreakdown:
    """Return what a step of a plan takes and why; it is simulated three times."""
    job = plan_step(plan, conditions)
    trace = simulate(job)
    alone_s = end_s(simulate(replace(job, collectives={})))
    free = replace(conditions, cluster=without_network(conditions.cluster))
    free = replace(free, overheads=Overheads(local_factor=conditions.overheads.local_factor))
    free_s = end_s(simulate(replace(plan_step(plan, free), collectives={})))
    compute_s, update_s = (
        sum(span.end_s - span.start_s for span in trace.spans if span.lane is lane) / plan.num_ranks
        for lane in (Lane.COMPUTE, Lane.UPDATE)
    )
    return StepBreakdown(
        compute_s=compute_s,
        update_s=update_s,
        bubble_s=free_s - compute_s - update_s,
        activations_s=alone_s - free_s,
        gradients_s=end_s(trace) - alone_s,
        trace=trace,
    )
