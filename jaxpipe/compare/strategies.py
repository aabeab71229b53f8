"""The sharding strategy of each SPMD system, and the search for Alpa's."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.autoshard.graph import trace_step
from jaxpipe.autoshard.intra_op import Machine, find_strategy
from jaxpipe.autoshard.spmd import baseline
from jaxpipe.autoshard.strategy import MeshShape, Strategy, ZeroLevel, mesh_on
from jaxpipe.compare.system import System
from jaxpipe.plan import Plan
from jaxpipe.runtime.job import Job
from topo import Cluster, subcluster

NAMES = ("state", "tokens", "targets")
RESULT_NAMES = ("state", "loss")

_PRODUCT = 768  # 0.9 GFLOP a product: long enough to time, short enough on one core
_PRODUCTS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A strategy, its description, and the seconds of its search; None if there was none."""

    strategy: Strategy
    description: str
    search_s: float | None = None


def choose(
    system: System,
    job: Job,
    step: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    cluster: Cluster,
) -> Chosen:
    """Return the strategy of a system for a step, given the shapes of its arguments.

    Raises:
        PlanError: no strategy was found.
    """
    num_ranks = job.plan.num_ranks
    if system is System.ALPA:
        return _found(job, step, arguments, cluster)
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


def _found(
    job: Job, step: Callable[..., Any], arguments: Sequence[Any], cluster: Cluster
) -> Chosen:
    begin_s = time.perf_counter()
    graph = trace_step(step, *arguments, names=NAMES, result_names=RESULT_NAMES)
    machine = Machine(flops_per_s=_product_flops_per_s())
    ranks = in_order_of_ranks(cluster, job.plan)
    size = job.plan.num_ranks
    all_found = [
        # Every factorisation of the ranks: the search itself takes the mesh as given.
        find_strategy(graph, mesh_on(ranks, dp=dp, op=size // dp), machine)
        for dp in range(1, size + 1)
        if size % dp == 0
    ]
    best = min(all_found, key=lambda found: found.priced.strategy.seconds or 0.0).priced
    mesh = best.strategy.mesh
    description = f"found, dp {mesh.dp} x op {mesh.op}, {len(best.collectives)} collectives"
    return Chosen(
        strategy=best.strategy, description=description, search_s=time.perf_counter() - begin_s
    )


def in_order_of_ranks(cluster: Cluster, plan: Plan) -> Cluster:
    """Return the cluster of the plan's devices only, in the order of their ranks."""
    return subcluster(cluster, [plan.device(rank) for rank in range(plan.num_ranks)])


def _product_flops_per_s() -> float:
    """Measure how fast this rank's device multiplies matrices of float32."""
    multiply = jax.jit(jnp.matmul)
    matrix = jnp.ones((_PRODUCT, _PRODUCT), jnp.float32)
    # The first call compiles.
    multiply(matrix, matrix).block_until_ready()
    seconds: list[float] = []
    for _ in range(_PRODUCTS):
        begin_s = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - begin_s)
    return 2.0 * _PRODUCT**3 / median(seconds)
