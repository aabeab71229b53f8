"""Proposal for a fleet: a cluster of more devices than a search can simulate."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxpipe.collective import CodecKind, CodecLimit
from jaxpipe.config import Config
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import LowerBound
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions
from jaxpipe.propose.query import Query, bound_of
from jaxpipe.schedule import Remat
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
    config: Config,
    options: SearchOptions,
    cluster: Cluster,
    *,
    observe: Callable[[int], None],
) -> FleetProposal:
    """Return the best plan found in the seconds of the options.

    Raises:
        ConfigError: the configuration or the options need simulations.
        PlanError: no plan fits.
    """
    query = Query(config=config, cluster=cluster)
    remat = config.train.remat or Remat.FULL
    task, conditions = query.task(remat)
    _check(config, options, task)
    seconds = options.seconds(len(cluster))
    found = search_fleet(fleet_costs(task, conditions), limit_s=seconds, observe=observe)
    used = {device for row in found.plan.placement for device in row}
    return FleetProposal(
        plan=replace(found.plan, remat=remat),
        cluster=task.cluster,
        precision=task.precision,
        step=found.step,
        coarse_s=found.coarse_s,
        num_valued=found.num_valued,
        left_out=tuple(device for device in range(len(task.cluster)) if device not in used),
        bound=bound_of(task, conditions),
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


def _check(config: Config, options: SearchOptions, task: Task) -> None:
    plan, comm = config.plan, config.comm
    given = (
        ("--objective", options.objective, Goal.TIME),
        ("--max-step-dollars", options.max_step_dollars, None),
        ("--max-dollars-per-million-tokens", options.max_dollars_per_million_tokens, None),
        ("--max-step-watt-hours", options.max_step_watt_hours, None),
        ("--max-tensor", options.max_tensor, 1),
        ("--outer", options.outer, OuterQuestion.NONE),
        ("plan.stages", plan.stages, None),
        ("plan.replicas", plan.replicas, None),
        ("plan.cut", plan.cut, None),
        ("plan.microbatch", plan.microbatch, None),
        ("plan.schedule", plan.schedule, None),
        ("plan.all_reduce", plan.all_reduce, None),
        ("plan.boundaries", plan.boundaries, None),
        ("plan.codecs", plan.codecs, CodecLimit.NONE),
        ("comm.boundary", comm.boundary, CodecKind.NONE),
        ("comm.gradients", comm.gradients, CodecKind.NONE),
        ("optimizer.sharded", config.optimizer.sharded, False),
    )
    for option, value, default in given:
        if value != default:
            raise ConfigError(
                f"`{option}` is {value}, but plans for more than {MOST_SIMULATED:,} devices are "
                f"valued in closed form, which has none: cluster {task.cluster.name!r} has "
                f"{len(task.cluster):,}; leave it out, or take fewer devices"
            )
