"""Closed-form estimate of a step, fast enough to rank thousands of plans before simulation."""

from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.network.alpha_beta import links_between
from jaxpipe.plan.cost.collective_cost import tree_s
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
    """Return each device's compute time relative to the profiled device; 1 if it is unknown."""
    return np.array(
        [
            profile.flops_per_s / device.flops_per_s(precision) if device.has_speed else 1.0
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
        steady    (microbatches - 1) times its slowest stage, or wire in one direction
        sync      the slowest stage's all-reduce along its sync tree
        update    the slowest optimizer, after all ranks have exchanged the gradient norm

    Exact for GPipe and 1F1B on equal stages if messages take no time; a lower bound otherwise,
    since it ignores the waits of a shallow warm-up and shared NICs.
    """
    profile = profile.scaled(microbatch=plan.microbatch)
    # Arrays are replicas x stages, or replicas x boundaries: the planner has one chunk per rank.
    placement = np.array(plan.placement)
    parts = [profile.stage(plan.cut, stage) for stage in range(plan.num_stages)]
    compute = slow[placement] * np.array([part.forward_s + part.backward_s for part in parts])
    ahead, behind = placement[:, :-1], placement[:, 1:]
    wires = [
        profile.activation_bytes / cluster.bandwidth_bytes_per_s[pair]
        for pair in ((ahead, behind), (behind, ahead))
    ]
    latency = cluster.latency_s[ahead, behind] + cluster.latency_s[behind, ahead]
    fill = compute.sum(axis=1) + (latency + wires[0] + wires[1]).sum(axis=1)
    # In the steady state each microbatch adds the time of the slowest stage or link.
    slowest = np.concatenate((compute, *wires), axis=1).max(axis=1)
    steady = (plan.num_microbatches - 1) * slowest
    # Of one replica: a long fill and a long steady state of two pipelines do not add up.
    worst = int((fill + steady).argmax())
    devices = tuple(plan.device(rank) for rank in range(plan.num_ranks))
    links = links_between(cluster, devices)
    updates = slow[placement] * np.array(
        [profile.update_s(plan.cut, stage, tied=plan.tied) for stage in range(plan.num_stages)]
    )
    return Estimate(
        fill_s=float(fill[worst]),
        steady_s=float(steady[worst]),
        sync_s=max(
            tree_s(
                links, tree, num_bytes=part.num_gradients * gradient_bytes, chunk_bytes=chunk_bytes
            )
            for tree, part in zip(plan.sync, parts, strict=True)
        ),
        update_s=float(updates.max()),
    )
