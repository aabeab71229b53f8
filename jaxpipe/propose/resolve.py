"""Resolve a configuration to its plan: once for a run, before its ranks start.

::

    plan.file is set                      the plan of the file
    shape, microbatch, schedule are set   the plan of the section, with the cut by cost
    any of them is free                   searched within `plan.search_s`, and kept by content
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.config import Config, check_plan_fits, check_settings, cluster_from
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, read_plan
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.propose.reasons import Reason
from jaxpipe.propose.searched_plan import searched_plan
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster

if TYPE_CHECKING:  # it imports jax
    from jaxpipe.runtime.stage.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The plan of a configuration; of one that was searched also lines and reasons for people.

    `costed` is the configuration with the costs by which it was searched.
    """

    plan: Plan
    costed: Config
    lines: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


def plan_from(
    config: Config, cluster: Cluster | None = None, *, model: "Model | None" = None
) -> Plan:
    """Return the plan of a configuration for a cluster, the configured one by default.

    It is the one in `plan.file`, or else follows from the section `plan`, whose free fields are
    searched. `model` is the one to train or to tune, by default the configured one.

    Raises:
        ConfigError: there is no such cluster, or the configuration is for another kind of plan.
        PlanError: cluster, model and batch do not fit the stages and replicas, or the file, or no
            plan fits into memory.
    """
    return resolve(config, cluster, model=model).plan


def resolve(
    config: Config,
    cluster: Cluster | None = None,
    *,
    model: "Model | None" = None,
    num_ranks: int | None = None,
    observe: Callable[[str], None] | None = None,
) -> Resolution:
    """Return the plan of a configuration, and what was chosen for it; see `plan_from`.

    A launcher of the user has started `num_ranks`, which a searched plan has to have. With
    `observe`, the model is measured on this machine where that was not done before.
    """
    cluster = cluster_from(config) if cluster is None else cluster
    check_settings(config)
    resolution = _resolution(config, cluster, model, num_ranks, observe)
    plan = resolution.plan
    plan = replace(plan, remat=config.train.remat or plan.remat or Remat.NONE)
    check_plan_fits(config, plan, source=config.plan.file or "the plan")
    return replace(resolution, plan=plan)


def _resolution(
    config: Config,
    cluster: Cluster,
    model: "Model | None",
    num_ranks: int | None,
    observe: Callable[[str], None] | None,
) -> Resolution:
    if config.plan.file is not None:
        try:
            plan = read_plan(Path(config.plan.file), cluster)
        except PlanError as error:
            raise PlanError(f"`plan.file`: {error}") from error
        return Resolution(plan=plan, costed=config)
    if config.plan.is_decided:
        return Resolution(plan=decided_plan(config, cluster, model=model), costed=config)
    refusal: PlanError | None = None
    for costed, lines in machine_costs(config, cluster, observe=observe):
        try:
            searched = searched_plan(costed, cluster, num_ranks=num_ranks)
        except PlanError as error:
            refusal = error
            continue
        return Resolution(
            plan=searched.plan,
            costed=costed,
            lines=(*lines, *searched.lines),
            reasons=searched.reasons,
        )
    assert refusal is not None, config
    raise refusal
