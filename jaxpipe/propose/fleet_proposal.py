"""Proposal for a fleet: a cluster of more devices than a search can simulate."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxpipe.collective import CodecKind, CodecLimit, Codecs
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import LowerBound, lower_bound
from jaxpipe.propose.request import Goal, OuterQuestion, PlanRequest
from jaxpipe.search import Task
from jaxpipe.search.fleet import FleetCosts, FleetStep, search_fleet
from jaxpipe.simulate import Conditions
from jaxpipe.topo import Cluster, Precision

MOST_SIMULATED = 1024
"""Plans for more devices are valued in closed form: to simulate one takes minutes or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProposal:
    """A plan, and its step in closed form; `coarse_s` is that of equal choices for all devices.

    `bound` holds for every plan for these devices.
    """

    plan: Plan
    cluster: Cluster
    precision: Precision
    step: FleetStep
    coarse_s: float
    num_valued: int
    left_out: tuple[int, ...]
    bound: LowerBound


def propose_fleet(
    request: PlanRequest, task: Task, conditions: Conditions, *, observe: Callable[[int], None]
) -> FleetProposal:
    """Return the best plan found in the seconds of the request.

    Raises:
        ConfigError: the request has an option that needs simulations.
        PlanError: no plan fits.
    """
    _check(request, task, conditions.codecs)
    found = search_fleet(fleet_costs(task, conditions), limit_s=request.budget, observe=observe)
    used = {device for row in found.plan.placement for device in row}
    return FleetProposal(
        plan=found.plan,
        cluster=task.cluster,
        precision=task.precision,
        step=found.step,
        coarse_s=found.coarse_s,
        num_valued=found.num_valued,
        left_out=tuple(device for device in range(len(task.cluster)) if device not in used),
        bound=lower_bound(
            task.cluster,
            task.profile,
            slow=task.slow,
            batch=task.batch,
            gradient_bytes=task.bytes_each.gradient,
            local_factor=conditions.overheads.local_factor,
        ),
    )


def fleet_costs(task: Task, conditions: Conditions) -> FleetCosts:
    """Return the closed form with the overheads of a simulation."""
    overheads = conditions.overheads
    return FleetCosts(
        task=task,
        messages=overheads.messages,
        nic_efficiency=overheads.nic_efficiency,
        local_factor=overheads.local_factor,
    )


def _check(request: PlanRequest, task: Task, codecs: Codecs) -> None:
    given = (
        ("--objective", request.objective, Goal.TIME),
        ("--max-step-dollars", request.max_step_dollars, None),
        ("--max-dollars-per-million-tokens", request.max_dollars_per_million_tokens, None),
        ("--max-step-watt-hours", request.max_step_watt_hours, None),
        ("--layout", request.layout, None),
        ("--max-tensor", request.max_tensor, 1),
        ("--measure", request.measure, False),
        ("--outer", request.outer, OuterQuestion.NONE),
        ("--replicas", request.replicas, None),
        ("--codecs", request.codecs, CodecLimit.NONE),
        ("comm.boundary", codecs.boundary, CodecKind.NONE),
        ("comm.gradients", codecs.gradients, CodecKind.NONE),
        ("--sharded-optimizer", request.sharded_optimizer, False),
    )
    for option, value, default in given:
        if value != default:
            raise ConfigError(
                f"plans for more than {MOST_SIMULATED:,} devices are valued in closed form, which "
                f"has no `{option}`: it is {value}, and cluster {task.cluster.name!r} has "
                f"{len(task.cluster):,} devices; leave it out, or take fewer devices"
            )
