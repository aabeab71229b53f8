"""A smaller plan for a run that has lost ranks."""

import json
from collections.abc import Sequence
from dataclasses import replace

from jaxpipe.collective import AllReduceKind
from jaxpipe.config import Config, cluster_from, plan_from
from jaxpipe.errors import UserError
from jaxpipe.topo import Cluster

_SIZES = ("plan.stages", "plan.replicas")


def smaller(
    config: Config, settings: Sequence[str], *, devices: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Return settings for the largest plan with fewer ranks; None if there is none.

    `settings` are those that `config` was read with; they are kept, except for the size of a plan.
    `devices` names the remaining devices, for example without the one of a lost rank. Among plans
    of equal size the one with the most stages wins: each rank then holds less. A plan from a file
    cannot be resized, nor one whose replicas differ.
    """
    num_ranks = config.plan.num_ranks
    found = None if num_ranks is None else within(config, num_ranks=num_ranks - 1, devices=devices)
    if found is None:
        return None
    changed = (*_SIZES, "plan.devices") if devices else _SIZES
    # Later settings would win, but each attempt would lengthen the command line.
    kept = [each for each in settings if each.split("=")[0] not in changed]
    sizes = (f"plan.stages={found.plan.stages}", f"plan.replicas={found.plan.replicas}")
    # Names of devices need no escapes in TOML: `jaxpipe.topo.names` has their rule.
    named = (f"plan.devices={json.dumps(list(devices))}",) if devices else ()
    return (*kept, *sizes, *named)


def within(
    config: Config,
    *,
    num_ranks: int,
    devices: Sequence[str] = (),
    all_reduce: AllReduceKind | None = None,
) -> Config | None:
    """Return the configuration with the largest plan of at most `num_ranks` ranks.

    None if no plan fits. Among plans of equal size the one with the most stages wins. `devices`
    names the remaining devices in the order of their ranks; by default those of the plan. A running
    plan's `all_reduce` is kept: to choose again takes seconds with hundreds of ranks.
    """
    plan = replace(
        config.plan,
        devices=tuple(devices) or config.plan.devices,
        all_reduce=config.plan.all_reduce or all_reduce,
    )
    if plan.file is not None or plan.has_unlike_replicas:
        return None
    cluster = cluster_from(config)
    lengths = range(1, num_ranks + 1)
    sizes = [(n * m, n, m) for n in lengths for m in lengths if n * m <= num_ranks]
    for _, length, count in sorted(sizes, reverse=True):  # by ranks, then by stages
        sized = replace(plan, stages=length * plan.chunks, replicas=count)
        if _fits(found := replace(config, plan=sized), cluster):
            return found
    return None


def _fits(config: Config, cluster: Cluster) -> bool:
    try:
        plan_from(config, cluster)
    except UserError:
        return False
    return True
