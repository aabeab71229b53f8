"""The oracle of outer loops: all islands in one process, as the papers write their algorithms.

In the precision of its arguments, and without anything of `jaxpipe.outer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

InnerStep = Callable[[Any, int, int], Any]
"""From the parameters of an island, its number and the inner step to its next parameters."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The hyperparameters of an outer loop."""

    weights: Sequence[float]
    every: int
    eta: float = 0.7
    mu: float = 0.9


def diloco(
    start: np.ndarray, inner: InnerStep, setting: Setting, *, num_steps: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the anchor, its momentum, and the anchors after each outer step.

    Source: DiLoCo, arXiv 2311.08105, algorithm 1.
    """
    anchor, momentum = start.copy(), np.zeros_like(start)
    anchors = []
    for first in range(0, num_steps, setting.every):
        total = np.zeros_like(start)
        for island, weight in enumerate(setting.weights):
            local = anchor.copy()
            for step in range(first, first + setting.every):
                local = inner(local, island, step)
            total += weight * (anchor - local)
        momentum = setting.mu * momentum + total
        anchor = anchor - setting.eta * (total + setting.mu * momentum)
        anchors.append(anchor)
    return anchor, momentum, anchors


def eager(
    start: np.ndarray, inner: InnerStep, setting: Setting, *, num_steps: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Return the parameters of each island after each round, and the sums of each round.

    Every island has an anchor and a momentum of its own.

    Source: "Eager Updates For Overlapped Communication and Computation in DiLoCo",
    arXiv 2502.12996: own outer gradient at once, those of the others a round later.
    """
    islands = range(len(setting.weights))
    anchors = [start.copy() for _ in islands]
    momenta = [np.zeros_like(start) for _ in islands]
    late = [np.zeros_like(start) for _ in islands]
    rounds, sums = [], []
    for first in range(0, num_steps, setting.every):
        own = []
        for island in islands:
            local = anchors[island]
            for step in range(first, first + setting.every):
                local = inner(local, island, step)
            own.append(setting.weights[island] * (anchors[island] - local))
        for island in islands:
            gradient = own[island] + sum(late[other] for other in islands if other != island)
            momenta[island] = setting.mu * momenta[island] + gradient
            step_by = gradient + setting.mu * momenta[island]
            anchors[island] = anchors[island] - setting.eta * step_by
        late = own
        rounds.append([each.copy() for each in anchors])
        sums.append(sum(own))
    return rounds, sums
