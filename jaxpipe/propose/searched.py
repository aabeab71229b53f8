"""The search of `jaxpipe plan`: even plans, also with tensor parallelism, and unlike ones."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import overfull
from jaxpipe.plan.decide import Effort, Objective, Shape, Task, decide
from jaxpipe.plan.decide.grouped import GroupedTask, degrees
from jaxpipe.plan.decide.unlike import improved, is_worth_trying, unlike_plans
from jaxpipe.propose.request import PlanRequest

_EVEN = 0.8
"""The fraction of the seconds for plans whose replicas are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan, its value, and the best value of each shape of single devices."""

    plan: Plan
    value: float
    by_shape: tuple[tuple[Shape, float], ...] = ()


def searched(
    request: PlanRequest,
    task: Task,
    objective: Objective,
    *,
    num_heads: int,
    recomputes: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> Found:
    """Return the best plan that is found in the seconds of the request, by the `clock`.

    Raises:
        PlanError: no plan fits.
    """
    sizes = degrees(task, most=request.max_tensor, num_heads=num_heads)
    budget_s = request.budget / len(sizes)
    found: list[Found] = []
    refusal: PlanError | None = None
    for degree in sizes:
        groups = GroupedTask(task, degree=degree, recomputes=recomputes)
        try:
            found.append(
                _of_degree(request, task, objective, groups, budget_s=budget_s, clock=clock)
            )
        except PlanError as error:
            # A model that devices alone cannot hold may fit groups of them.
            refusal = refusal or error
    if refusal is not None and not found:
        raise refusal
    return min(found, key=lambda each: each.value)


def _of_degree(
    request: PlanRequest,
    task: Task,
    objective: Objective,
    groups: GroupedTask,
    *,
    budget_s: float,
    clock: Callable[[], float],
) -> Found:
    """Return the best plan whose ranks have as many devices as the groups."""
    is_grouped = groups.degree > 1
    smaller = groups.task if is_grouped else task

    def on_devices(plan: Plan) -> Plan:
        return groups.plan(plan) if is_grouped else plan

    def value(plan: Plan) -> float:
        whole = on_devices(plan)
        # The memory of a group counts as one in the smaller task.
        if is_grouped and overfull(whole, task.profile, task.cluster, each=task.bytes_each):
            return inf
        return objective(whole)

    until_s = clock() + budget_s
    # The time decides: a million changes are never reached.
    effort = Effort(seconds=_EVEN * budget_s, num_changes=10**6)
    even = decide(smaller, value, seed=request.seed, effort=effort, clock=clock)
    best, least = even.plan, even.value
    if _may_differ(request, smaller, best):
        best, least = _unlike(smaller, (best, least), value, lambda: clock() > until_s)
    if least == inf:
        raise PlanError(
            f"a plan fits into its devices: none does for ranks of {groups.degree} devices; take "
            "larger devices, a smaller model, or rematerialise"
        )
    by_shape = () if is_grouped else even.by_shape
    return Found(plan=on_devices(best), value=least, by_shape=by_shape)


def _may_differ(request: PlanRequest, task: Task, plan: Plan) -> bool:
    """Return whether replicas may be unlike: not with a schedule that is made for one plan."""
    is_free = request.stages is None and request.replicas is None
    return is_free and not request.measure and is_worth_trying(task, plan)


def _unlike(
    task: Task, even: tuple[Plan, float], value: Objective, is_late: Callable[[], bool]
) -> tuple[Plan, float]:
    """Return the best of the even plan and of those with unlike replicas, and its value."""
    best, least = even
    for plan in unlike_plans(task, best):
        if is_late():
            break
        if (found := value(plan)) < least:
            best, least = plan, found
    if best.is_even or is_late():
        return best, least
    return improved(task, best, least, value, is_late)
