"""The sharding strategy of each SPMD system, and the search for Alpa's."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpipe.autoshard.graph import trace_step
from jaxpipe.autoshard.intra_op import Machine, find_strategy
from jaxpipe.autoshard.spmd import baseline
from jaxpipe.autoshard.strategy import MeshShape, Strategy, ZeroLevel
from jaxpipe.compare.busy_speeds import BusySpeeds
from jaxpipe.compare.system import System
from jaxpipe.runtime.job import Job

NAMES = ("state", "tokens", "targets")
RESULT_NAMES = ("state", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A strategy and its description; if it was searched for, the seconds, and for which speeds."""

    strategy: Strategy
    description: str
    search_s: float | None = None
    searched_for: str | None = None


def choose(
    system: System,
    job: Job,
    step: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    speeds: BusySpeeds | None,
) -> Chosen:
    """Return the strategy of a system for a step, given the shapes of its arguments.

    A system that searches for one needs the `speeds` of the ranks.

    Raises:
        PlanError: no strategy was found.
    """
    num_ranks = job.plan.num_ranks
    if system is System.ALPA:
        assert speeds is not None, "alpa searches for measured speeds"
        return _found(step, arguments, speeds)
    is_tensor = system is System.MEGATRON
    mesh = MeshShape(dp=1, op=num_ranks) if is_tensor else MeshShape(dp=num_ranks, op=1)
    strategy = baseline(
        arguments[0],
        (job.train.batch, job.sequence),
        mesh=mesh,
        split=job.model.split,
        zero=ZeroLevel.PARAMETERS if system is System.ZERO3 else ZeroLevel.NONE,
    )
    return Chosen(strategy=strategy, description=strategy.name)


def _found(step: Callable[..., Any], arguments: Sequence[Any], speeds: BusySpeeds) -> Chosen:
    begin_s = time.perf_counter()
    graph = trace_step(step, *arguments, names=NAMES, result_names=RESULT_NAMES)
    machine = Machine(flops_per_s=speeds.flops_per_s)
    # The search itself takes the mesh as given.
    all_found = [find_strategy(graph, mesh, machine) for mesh in speeds.meshes]
    best = min(all_found, key=lambda found: found.priced.strategy.seconds or 0.0).priced
    mesh = best.strategy.mesh
    return Chosen(
        strategy=best.strategy,
        description=f"found, dp {mesh.dp} x op {mesh.op}, {len(best.collectives)} collectives",
        search_s=time.perf_counter() - begin_s,
        searched_for=str(speeds),
    )
