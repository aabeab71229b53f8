"""Closed-form estimate of a step, fast enough to rank thousands of plans before simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.network.alpha_beta import links_between
from jaxpipe.plan.cost.collective_cost import all_reduce_s
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.plan import Plan
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The seconds of a step: the first microbatch, all others, the gradient sync, the update."""

    fill_s: float
    steady_s: float
    sync_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        """The seconds of the whole step."""
        return self.fill_s + self.steady_s + self.sync_s + self.update_s


def slowness(cluster: Cluster, profile: Profile, precision: Precision) -> np.ndarray:
    """Return each device's compute time relative to the profiled device.

    A device of unknown speed is as fast as that, or as its relative speed says.
    """
    return np.array(
        [
            profile.flops_per_s / device.flops_per_s(precision)
            if device.has_speed
            else 1 / device.relative_speed
            for device in cluster.devices
        ]
    )


def estimate(
    plan: Plan,
    cluster: Cluster,
    profile: Profile,
    *,
    slow: np.ndarray,
    gradient_bytes: int = 4,
    chunk_bytes: float = inf,
) -> Estimate:
    """Return the estimate of a step of this plan, with `gradient_bytes` for each parameter.

    Gradients are sent in chunks of `chunk_bytes`.

    ::

        fill      the slowest replica's sum over stages of (forward + backward + both messages)
        steady    (microbatches - 1) times its slowest rank, or wire in one direction
        sync      the slowest stage's all-reduces along the sync trees of its segments
        update    the slowest optimizer, after all ranks have exchanged the gradient norm

    Exact for GPipe and 1F1B on equal stages if messages take no time; a lower bound otherwise,
    since it ignores the waits of a shallow warm-up and shared NICs.
    """
    lines = [_line(plan, replicas, cluster, profile, slow=slow) for replicas in _alike(plan)]
    # Of one replica: a long fill and a long steady state of two pipelines do not add up.
    fill_s, steady_s, _ = max(lines, key=lambda line: line[0] + line[1])
    segments = _segments_s(
        plan, cluster, profile, gradient_bytes=gradient_bytes, chunk_bytes=chunk_bytes
    )
    return Estimate(
        fill_s=fill_s,
        steady_s=steady_s,
        # A stage reduces its segments one after the other.
        sync_s=max(
            sum(segments[number] for number in plan.segments_of(replica=replica, stage=stage))
            for replica in (group[0] for group in _alike(plan))
            for stage in range(plan.pipelines[replica].num_stages)
        ),
        update_s=max(update_s for _, _, update_s in lines),
    )


def _alike(plan: Plan) -> list[list[int]]:
    """Return the replicas that differ in their devices alone, together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for replica, pipeline in enumerate(plan.pipelines):
        groups.setdefault(pipeline.shape, []).append(replica)
    return list(groups.values())


def _line(
    plan: Plan, replicas: Sequence[int], cluster: Cluster, profile: Profile, *, slow: np.ndarray
) -> tuple[float, float, float]:
    """Return fill and steady state of the slowest of replicas that are alike, and their update."""
    pipeline = plan.pipelines[replicas[0]]
    profile = profile.scaled(microbatch=pipeline.microbatch)
    parts = [profile.stage(pipeline.cut, stage) for stage in range(pipeline.num_stages)]
    # Arrays are replicas x stages, or replicas x boundaries; stages go to the ranks in turn.
    ranks = np.array([plan.pipelines[replica].devices for replica in replicas])
    placement = np.tile(ranks, plan.num_chunks)
    compute = slow[placement] * np.array([part.forward_s + part.backward_s for part in parts])
    of_ranks = compute.reshape(len(replicas), plan.num_chunks, -1).sum(axis=1)
    ahead, behind = placement[:, :-1], placement[:, 1:]
    message_bytes = np.array(profile.message_bytes(pipeline.cut))
    wires = [
        message_bytes / cluster.bandwidth_bytes_per_s[pair]
        for pair in ((ahead, behind), (behind, ahead))
    ]
    latency = cluster.latency_s[ahead, behind] + cluster.latency_s[behind, ahead]
    fill = compute.sum(axis=1) + (latency + wires[0] + wires[1]).sum(axis=1)
    # In the steady state each microbatch adds the time of the slowest rank or link.
    slowest = np.concatenate((of_ranks, *wires), axis=1).max(axis=1)
    steady = (pipeline.num_microbatches - 1) * slowest
    worst = int((fill + steady).argmax())
    updates = slow[placement] * np.array(
        [
            profile.update_s(pipeline.cut, stage, tied=plan.tied)
            for stage in range(pipeline.num_stages)
        ]
    )
    return float(fill[worst]), float(steady[worst]), float(updates.max())


def _segments_s(
    plan: Plan, cluster: Cluster, profile: Profile, *, gradient_bytes: int, chunk_bytes: float
) -> list[float]:
    """Return the seconds of the all-reduce of each segment."""
    links = links_between(cluster, tuple(plan.device(rank) for rank in range(plan.num_ranks)))
    return [
        all_reduce_s(
            plan.all_reduce,
            links,
            tree,
            num_bytes=profile.stage(plan.segments, number).num_gradients * gradient_bytes,
            chunk_bytes=chunk_bytes,
        )
        for number, tree in enumerate(plan.sync)
    ]
