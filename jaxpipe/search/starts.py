"""Initial placements, replicas x stages, for one shape."""

from collections.abc import Iterator

import numpy as np

from jaxpipe.search.dtfm import Budget, Weights, align, link_weights, prepare, search
from jaxpipe.search.shapes import Shape
from jaxpipe.search.task import Task


def orders(task: Task, shape: Shape) -> Iterator[np.ndarray]:
    """Yield simple placements: devices in order, by region and host, and by speed."""
    cells, size = (shape.replicas, shape.stages), shape.num_ranks
    devices = task.cluster.devices
    yield np.array(task.devices[:size]).reshape(cells)
    if task.fixed.devices is not None:
        return
    near = sorted(range(len(devices)), key=lambda i: (devices[i].region, devices[i].host))
    yield np.array(near[:size]).reshape(cells)
    # Devices of like speed hold a stage together: its slowest replica sets the pace.
    by_speed = np.argsort(task.slow, kind="stable")[:size]
    yield by_speed.reshape(shape.stages, shape.replicas).T


def by_dtfm_cost(task: Task, shape: Shape, *, seed: int, seconds: float) -> np.ndarray:
    """Return a placement of small DT-FM cost, with the bytes of this model, in about `seconds`.

    These are the activations of all microbatches of a pipeline, and the gradients of a mean stage.
    """
    weights = link_weights(
        task.cluster.latency_s,
        task.cluster.bandwidth_bytes_per_s,
        group_size=shape.replicas,
        gradient_bytes=_gradient_bytes(task) / shape.stages,
        activation_bytes=task.profile.activation_bytes * task.batch / shape.replicas,
    )
    # Starts and the optima below them: this search runs for each of the best shapes.
    budget = Budget(children=0, exhaustive=0, seconds=seconds)
    return grouped(weights, shape, seed=seed, budget=budget)


def grouped(weights: Weights, shape: Shape, *, seed: int, budget: Budget) -> np.ndarray:
    """Return the placement of least cost found, its stages matched to pipelines."""
    network = prepare(weights)
    found = search(
        network.weights,
        num_groups=shape.stages,
        group_size=shape.replicas,
        seed=seed,
        budget=budget,
    )
    return align(network, found.stages).T  # the search has groups in rows, placements have replicas


def _gradient_bytes(task: Task) -> int:
    whole = task.profile.stage((task.num_layers,), 0)
    return whole.num_gradients * task.bytes_each.gradient
