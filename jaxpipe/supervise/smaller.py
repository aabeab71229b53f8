"""The next smaller plan of a run, for when ranks are gone."""

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
    if plan.file is not None:
        return None
    num_ranks = plan.stages // plan.chunks * plan.replicas
    lengths = range(1, num_ranks)
    sizes = [(length, count) for length in lengths for count in lengths]
    fewer = [(n * m, n, m) for n, m in sizes if n * m < num_ranks]
    kept = [each for each in settings if each.split("=")[0] not in _SIZES]
    for _, length, count in sorted(fewer, reverse=True):
        if _fits(config, num_stages=length * plan.chunks, num_replicas=count):
            return (*kept, f"plan.stages={length * plan.chunks}", f"plan.replicas={count}")
    return None


def _fits(config: Config, *, num_stages: int, num_replicas: int) -> bool:
    plan = replace(config.plan, stages=num_stages, replicas=num_replicas)
    try:
        plan_from(replace(config, plan=plan))
    except UserError:
        return False
    return True
