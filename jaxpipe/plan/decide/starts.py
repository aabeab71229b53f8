"""Placements to start from, replicas x stages, for one shape."""

from collections.abc import Iterator

import numpy as np

from jaxpipe.plan.decide.task import Shape, Task
from jaxpipe.plan.dtfm import Budget, align, link_weights, prepare, search

_BUDGET = Budget(children=0, exhaustive=0)


def placements(task: Task, shape: Shape, *, seed: int) -> Iterator[np.ndarray]:
    """Yield placements: as devices come, by speed, and by DT-FM's cost.

    DT-FM's cost is taken with what this model sends: the activations of all of a pipeline's
    microbatches, and the gradients of a mean stage.
    """
    cells = (shape.replicas, shape.stages)
    size = shape.num_ranks
    yield np.arange(size).reshape(cells)
    by_speed = np.argsort(task.slow, kind="stable")[:size]
    yield by_speed.reshape(shape.stages, shape.replicas).T
    network = prepare(
        link_weights(
            task.cluster.latency_s,
            task.cluster.bandwidth_bytes_per_s,
            group_size=shape.replicas,
            gradient_bytes=_gradient_bytes(task) / shape.stages,
            activation_bytes=task.profile.activation_bytes * task.batch / shape.replicas,
        )
    )
    found = search(
        network.weights,
        num_groups=shape.stages,
        group_size=shape.replicas,
        seed=seed,
        budget=_BUDGET,
    )
    yield align(network, found.stages).T


def _gradient_bytes(task: Task) -> int:
    whole = task.profile.stage((task.num_layers,), 0)
    return whole.parameters * task.bytes_each.gradient
