"""Resolve a configuration to its plan: once for a run, before its ranks start.

::

    plan.file is set                      the plan of the file
    shape, microbatch, schedule are set   the plan of the section, with the cut by cost
    any of them is free                   searched within `plan.search_s`, and kept by content
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.config import Config, check_plan_fits, cluster_from
from jaxpipe.plan import Plan, read_plan
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.machine_speed import with_machine_speed
from jaxpipe.propose.reasons import Reason
from jaxpipe.propose.searched_plan import searched_plan
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster

if TYPE_CHECKING:  # it imports jax
    from jaxpipe.runtime.stage.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The plan of a configuration; of one that was searched also lines and reasons for people."""

    plan: Plan
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
) -> Resolution:
    """Return the plan of a configuration, and what was chosen for it; see `plan_from`.

    A launcher of the user has started `num_ranks`, which a searched plan has to have.
    """
    cluster = cluster_from(config) if cluster is None else cluster
    resolution = _resolution(config, cluster, model, num_ranks)
    plan = resolution.plan
    plan = replace(plan, remat=config.train.remat or plan.remat or Remat.NONE)
    check_plan_fits(config, plan, source=config.plan.file or "the plan")
    return replace(resolution, plan=plan)


def _resolution(
    config: Config, cluster: Cluster, model: "Model | None", num_ranks: int | None
) -> Resolution:
    if config.plan.file is not None:
        return Resolution(plan=read_plan(Path(config.plan.file), cluster))
    if config.plan.is_decided:
        return Resolution(plan=decided_plan(config, cluster, model=model))
    config, lines = with_machine_speed(config, cluster)
    searched = searched_plan(config, cluster, num_ranks=num_ranks)
    return Resolution(plan=searched.plan, lines=(*lines, *searched.lines), reasons=searched.reasons)
