"""The outer step: islands train apart for H inner steps, then move one common anchor.

::

    every island starts at the anchor        theta_m = theta
    H inner steps, each on its own data      theta_m <- inner optimizer (theta_m)
    outer gradient: old minus new            D_m = theta - theta_m,   D = sum of w_m D_m
    Nesterov momentum                        u <- mu u + D
                                             theta <- theta - eta (D + mu u)
    back to the islands                      theta_m <- alpha theta_m + (1 - alpha) theta

The moments of the inner optimizer stay on their island: they are neither averaged nor reset. With
`eta = 1` and `mu = 0` the new anchor is the mean of the islands (federated averaging). From `u = 0`
the first step moves by `(1 + mu) eta D`.

Every function treats each number by itself, in float32: a vector may be stepped in any parts.

Source: Douillard et al., "DiLoCo", arXiv 2311.08105, algorithm 1; the mixing by alpha is that of
"Streaming DiLoCo", arXiv 2501.18512, algorithm 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from jaxpipe.errors import ConfigError

Vector = Float32[np.ndarray, " size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """SGD with Nesterov momentum: the learning rate is eta, the momentum is mu."""

    learning_rate: float
    momentum: float


MEAN = OuterOptimizer(learning_rate=1.0, momentum=0.0)
"""Moves the anchor to the weighted mean of the islands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterState:
    """The anchor and the momentum of some parameters: equal on all islands, bit for bit."""

    anchor: Vector
    momentum: Vector


def fresh_state(anchor: Vector) -> OuterState:
    """Return the state before the first outer step; `anchor` is copied."""
    return OuterState(anchor=anchor.copy(), momentum=np.zeros_like(anchor))


def token_weights(tokens: Sequence[float]) -> tuple[float, ...]:
    """Return the weight of each island: its share of the tokens since the last outer step.

    An island without tokens has the weight 0, and the outer step is that of the others.

    >>> token_weights([300, 100, 0])
    (0.75, 0.25, 0.0)

    Raises:
        ConfigError: a number is negative, or none is positive.
    """
    total = sum(tokens)
    if min(tokens) < 0 or not total > 0:
        raise ConfigError(
            f"`tokens` of the islands ({', '.join(map(str, tokens))}) must not be negative, and "
            "one must be positive"
        )
    return tuple(count / total for count in tokens)


def outer_gradient(anchor: Vector, local: Vector, *, weight: float) -> Vector:
    """Return what an island contributes to the sum D: its weight times (anchor - local).

    >>> outer_gradient(np.float32([3.0]), np.float32([1.0]), weight=0.5)
    array([1.], dtype=float32)
    """
    return np.float32(weight) * (anchor - local)


def outer_step(state: OuterState, gradient: Vector, optimizer: OuterOptimizer) -> OuterState:
    """Return the state after one step, given the sum of all outer gradients.

    >>> state = fresh_state(np.float32([1.0]))
    >>> after = outer_step(state, np.float32([0.5]), OuterOptimizer(learning_rate=1, momentum=0.5))
    >>> after.anchor, after.momentum
    (array([0.25], dtype=float32), array([0.5], dtype=float32))
    """
    rate, mu = np.float32(optimizer.learning_rate), np.float32(optimizer.momentum)
    momentum = mu * state.momentum + gradient
    return OuterState(anchor=state.anchor - rate * (gradient + mu * momentum), momentum=momentum)


def mean_step(state: OuterState, gradient: Vector) -> OuterState:
    """Return the state with the anchor at the mean of the islands; the momentum stays."""
    return OuterState(
        anchor=outer_step(state, gradient, MEAN).anchor,
        momentum=state.momentum,
    )


def mixed(local: Vector, anchor: Vector, *, local_fraction: float) -> Vector:
    """Return the parameters with which an island continues: `local_fraction` is alpha.

    With 0 they are the anchor, bit for bit; with 1 the island never receives anything.

    >>> mixed(np.float32([1.0]), np.float32([3.0]), local_fraction=0.5)
    array([2.], dtype=float32)
    """
    # Two cases of their own: 0 times an infinite value would be NaN.
    if local_fraction in (0, 1):
        return (local if local_fraction else anchor).copy()
    fraction = np.float32(local_fraction)
    return fraction * local + (np.float32(1) - fraction) * anchor
