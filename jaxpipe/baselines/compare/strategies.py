"""The sharding strategy of each SPMD system, and the searches for Alpa's and HiDup's."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile, CostModel, DeviceSpeed, search
from jaxpipe.baselines.autoshard.duplex.duplex_systems import bucket_bytes, strategy_of
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import NamedStep, baseline
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, ZeroLevel
from jaxpipe.baselines.compare.busy_speeds import BusySpeeds
from jaxpipe.baselines.compare.routed_job import config_of
from jaxpipe.baselines.compare.system import SPLITS_EXPERTS
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.baselines.systems import System
from jaxpipe.runtime.job import Job

NAMES = ("state", "tokens", "targets")
RESULT_NAMES = ("state", "loss")
BUCKET_BYTES = {
    System.DDP: bucket_bytes(System.DDP),
    System.HOROVOD: bucket_bytes(System.HOROVOD),
}
"""Gradients that one all-reduce carries at most; without an entry it carries all."""


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
    step: NamedStep,
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
    if system is System.HIDUP:
        assert speeds is not None, "hidup searches for measured speeds"
        return _duplex(job, step, arguments, speeds)
    if system in SPLITS_EXPERTS:
        return _experts(job, step, arguments)
    is_tensor = system is System.MEGATRON
    mesh = MeshShape(dp=1, op=num_ranks) if is_tensor else MeshShape(dp=num_ranks, op=1)
    strategy = baseline(
        arguments[0],
        arguments[1].shape,
        arguments[2].shape,
        mesh=mesh,
        split=job.model.split,
        zero=ZeroLevel.PARAMETERS if system is System.ZERO3 else ZeroLevel.NONE,
    )
    return Chosen(strategy=strategy, description=strategy.name)


def _experts(job: Job, step: NamedStep, arguments: Sequence[Any]) -> Chosen:
    """Return expert parallelism; what differs between systems is the routing of the job."""
    config, num_ranks = config_of(job), job.plan.num_ranks
    graph = duplex_graph(config, batch=job.train.batch, dtype=config.compute_dtype)
    strategy = realized(
        step,
        arguments,
        graph=graph,
        decisions=strategy_of(System.GSHARD, graph, num_devices=num_ranks),
        names=model_names(config),
        num_devices=num_ranks,
    )
    slots = config.routing
    assert slots is not None, config
    groups, tokens = slots.grouped(job.train.batch, job.sequence)
    return Chosen(
        strategy=strategy,
        description=f"experts over dp {num_ranks}, {groups} routing groups of {tokens} tokens, "
        f"{slots.capacity(tokens)} slots of an expert in each",
    )


def _duplex(job: Job, step: NamedStep, arguments: Sequence[Any], speeds: BusySpeeds) -> Chosen:
    begin_s = time.perf_counter()
    config, num_ranks = config_of(job), job.plan.num_ranks
    graph = duplex_graph(config, batch=job.train.batch, dtype=config.compute_dtype)
    result = search(
        CostModel(
            graph=graph,
            device=DeviceSpeed(flops_per_s=speeds.flops_per_s),
            profile=ring_profile(speeds, num_devices=num_ranks),
        )
    )
    strategy = realized(
        step,
        arguments,
        graph=graph,
        decisions=result.strategy,
        names=model_names(config),
        num_devices=num_ranks,
    )
    num_stages = sum(decision.starts_stage for decision in result.strategy)
    return Chosen(
        strategy=strategy,
        description=f"found, two halves in {num_stages} stages over {num_ranks} devices",
        search_s=time.perf_counter() - begin_s,
        searched_for=str(speeds),
    )


def ring_profile(speeds: BusySpeeds, *, num_devices: int) -> CollectiveProfile:
    """Return the speeds of collectives as rings over the measured links of all ranks.

    >>> from jaxpipe.baselines.autoshard.strategy import AxisLink
    >>> link = AxisLink(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    >>> speeds = BusySpeeds(flops_per_s=1e9, meshes=(MeshShape(dp=4, op=1, dp_link=link),))
    >>> profile = ring_profile(speeds, num_devices=4)
    >>> round(profile.all_gather / profile.all_reduce, 6), round(profile.latency_s, 6)
    (2.0, 0.003)
    """
    if num_devices == 1:
        return CollectiveProfile(devices=1)
    link = next(mesh.dp_link for mesh in speeds.meshes if mesh.dp == num_devices)
    # Of the whole tensor each device sends (n - 1) / n, and in an all-to-all an n-th of that.
    part = (num_devices - 1) / num_devices
    once = link.bandwidth_bytes_per_s / part if link.bandwidth_bytes_per_s < inf else inf
    return CollectiveProfile(
        devices=num_devices,
        latency_s=(num_devices - 1) * link.latency_s,
        all_gather=once,
        reduce_scatter=once,
        all_reduce=once / 2,
        all_to_all=once * num_devices,
        source="rings over measured links",
    )


def _found(step: NamedStep, arguments: Sequence[Any], speeds: BusySpeeds) -> Chosen:
    begin_s = time.perf_counter()
    graph = trace_step(step.run, *arguments, names=NAMES, result_names=RESULT_NAMES)
    machine = Machine(flops_per_s=speeds.flops_per_s)
    # The search itself takes the mesh as given.
    all_found = [find_strategy(graph, mesh, machine) for mesh in speeds.meshes]
    best = min(all_found, key=lambda searched: searched.priced.strategy.seconds or 0.0).priced
    mesh = best.strategy.mesh
    return Chosen(
        strategy=best.strategy,
        description=f"found, dp {mesh.dp} x op {mesh.op}, {len(best.collectives)} collectives",
        search_s=time.perf_counter() - begin_s,
        searched_for=str(speeds),
    )
