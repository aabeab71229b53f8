"""Where the seconds of a planned step go: computing, bubble, activations, gradients.

Four parts that add up, each the difference of two simulations::

    compute       the mean rank's forwards and backwards
    bubble        what a network without latency and of endless bandwidth adds: waiting in order
    activations   what messages between stages add on the real network
    gradients     what the sums over ranks add, as far as nothing hides them
"""

from dataclasses import dataclass, replace

from jaxpipe.plan import Plan
from jaxpipe.simulate.events import simulate
from jaxpipe.simulate.other_links import without_network
from jaxpipe.simulate.planned import Conditions, Overheads, end_s, plan_job
from jaxpipe.trace import Lane, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """The simulated seconds of a step, by what they are spent on, and the trace of the step."""

    compute_s: float
    bubble_s: float
    activations_s: float
    gradients_s: float
    trace: Trace

    @property
    def step_s(self) -> float:
        """All of them."""
        return self.compute_s + self.bubble_s + self.activations_s + self.gradients_s


def step_split(plan: Plan, conditions: Conditions) -> StepSplit:
    """Return what a step of a plan takes and why; it is simulated three times."""
    job = plan_job(plan, conditions)
    trace = simulate(job)
    alone_s = end_s(simulate(replace(job, collectives={})))
    free = replace(conditions, cluster=without_network(conditions.cluster))
    free = replace(free, overheads=Overheads(local_factor=conditions.overheads.local_factor))
    free_s = end_s(simulate(replace(plan_job(plan, free), collectives={})))
    busy_s = sum(span.end_s - span.start_s for span in trace.spans if span.lane is Lane.COMPUTE)
    compute_s = busy_s / plan.num_ranks
    return StepSplit(
        compute_s=compute_s,
        bubble_s=free_s - compute_s,
        activations_s=alone_s - free_s,
        gradients_s=end_s(trace) - alone_s,
        trace=trace,
    )
