"""Stages from measured or counted layer costs, each of them data parallel over its submesh."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.baselines.autoshard.inter_op.stage_search import SubmeshSpace
from jaxpipe.baselines.autoshard.inter_op.submesh_stage import StageCost, submeshes
from jaxpipe.plan.cost import Part, links_between, ring_s
from jaxpipe.search import Task
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledCosts:
    """The cost of layers on devices that split each microbatch of `microbatch` samples evenly.

    The slowest device decides. Gradients are all-reduced by a ring once a step, a cost that is
    spread over the `num_microbatches`. Layers, devices and bytes are those of the task.
    """

    task: Task
    microbatch: int
    num_microbatches: int

    def __call__(self, layers: range, devices: range) -> StageCost | None:
        """Return the cost of a stage, or None if its devices do not divide a microbatch."""
        size = len(devices)
        if self.microbatch % size:  # the runtime gives each device whole samples
            return None
        task, per_parameter = self.task, self.task.bytes_each
        # From the profile's microbatch to the samples of one device: costs are linear in samples.
        factor = self.microbatch / size / task.profile.microbatch
        part = _stage(task, layers).scaled(factor)
        optimizer = per_parameter.optimizer / (size if per_parameter.shards_optimizer else 1)
        # All devices of the stage wait for the slowest.
        compute_s = (part.forward_s + part.backward_s) * float(task.slow[list(devices)].max())
        links = links_between(task.cluster, tuple(devices))
        num_bytes = part.parameters * per_parameter.gradient
        sum_s = ring_s(links, num_bytes=num_bytes) if size > 1 else 0.0
        return StageCost(
            # Equation 2 counts the stage once per microbatch: each gets its part of the all-reduce.
            seconds=compute_s + sum_s / self.num_microbatches,
            held_bytes=part.parameters
            * (per_parameter.parameter + per_parameter.gradient + optimizer),
            # The residuals of the blocks, and the input of the stage.
            live_bytes=part.kept_bytes + round(task.profile.activation_bytes * factor),
        )


def submesh_space(task: Task, *, microbatch: int, equal: int | None = None) -> SubmeshSpace:
    """Return the submeshes of a task's cluster, for microbatches of this many samples.

    With `equal` all submeshes have that many devices. A device of unknown memory has no limit.
    """
    cluster, profile = task.cluster, task.profile.scaled(microbatch=microbatch)
    ranges = submeshes(cluster) if equal is None else _blocks(cluster, equal)

    # From the last device of the previous stage to the first of this one: submeshes are neighbours.
    def hop_s(device: int) -> float:
        there, back = (device - 1, device), (device, device - 1)
        return sum(
            float(
                cluster.latency_s[pair]
                + profile.activation_bytes / cluster.bandwidth_bytes_per_s[pair]
            )
            for pair in (there, back)
        )

    return SubmeshSpace(
        submeshes=ranges,
        memory_bytes=[
            np.inf if device.memory_bytes is None else device.memory_bytes
            for device in cluster.devices
        ],
        hop_s=hop_s,
    )


def _blocks(cluster: Cluster, size: int) -> tuple[range, ...]:
    return tuple(range(a, a + size) for a in range(0, len(cluster) - size + 1, size))


def _stage(task: Task, layers: range) -> Part:
    """Return the layers' part of the profile; the first has the embedding, the last the head."""
    total = sum((task.profile.layers[layer] for layer in layers), Part())
    if layers.start == 0:
        total += task.profile.embed
    return total + task.profile.head if layers.stop == task.num_layers else total
