"""A smaller plan for a run, for when ranks are gone."""

from collections.abc import Sequence
from dataclasses import replace

from jaxpipe.config import Config, plan_from
from jaxpipe.errors import UserError

_SIZES = ("plan.stages", "plan.replicas")


def smaller(config: Config, settings: Sequence[str]) -> tuple[str, ...] | None:
    """Return settings that make the plan use fewer ranks, as many as can be; None if none do.

    `settings` are those that `config` was read with, which stay, but for older ones of a plan's
    size. Of plans with as many ranks, the one with more stages is taken: a rank then holds less.
    A plan from a file is for its ranks alone.
    """
    plan = config.plan
    found = within(config, num_ranks=plan.stages // plan.chunks * plan.replicas - 1)
    if found is None:
        return None
    kept = [each for each in settings if each.split("=")[0] not in _SIZES]
    return (*kept, f"plan.stages={found.plan.stages}", f"plan.replicas={found.plan.replicas}")


def within(config: Config, *, num_ranks: int, devices: Sequence[str] = ()) -> Config | None:
    """Return the configuration with a plan of `num_ranks` ranks, or of as many as can be below.

    It is None if no plan fits. Of several, the one with the most stages is taken. `devices` are the
    names of those that are left, in the order of their ranks; if it is empty, those of the plan.
    """
    plan = replace(config.plan, devices=tuple(devices) or config.plan.devices)
    if plan.file is not None:
        return None
    lengths = range(1, num_ranks + 1)
    sizes = [(n * m, n, m) for n in lengths for m in lengths if n * m <= num_ranks]
    for _, length, count in sorted(sizes, reverse=True):
        sized = replace(plan, stages=length * plan.chunks, replicas=count)
        if _fits(found := replace(config, plan=sized)):
            return found
    return None


def _fits(config: Config) -> bool:
    try:
        plan_from(config)
    except UserError:
        return False
    return True
