"""Dynamic loss scaling: float16 gradients neither vanish nor, for more than a step, overflow.

::

    cotangent of the loss * scale ─ backwards ─ reduce ─ squared norm over all ranks
                                                                 │
                    finite: gradients / scale, update  <─────────┴─────> else: keep all, scale / 2

The squared norm is summed over all stages before any of them updates, so that all ranks see the
same number, take or skip the step together, and hold the same scale without a further message.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
"""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpipe.runtime.settings import LossScaleConfig

Tree = TypeVar("Tree")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The scale, the steps since it last changed or a step overflowed, and the steps skipped."""

    scale: Float[Array, ""]
    good_steps: Int[Array, ""]
    skipped: Int[Array, ""]


def initial_loss_scale(config: LossScaleConfig) -> LossScale:
    """Return the state before the first step.

    >>> float(initial_loss_scale(LossScaleConfig(initial=1024.0)).scale)
    1024.0
    """
    return LossScale(
        scale=jnp.float32(config.initial), good_steps=jnp.int32(0), skipped=jnp.int32(0)
    )


def is_finite(square_norm: Float[Array, ""]) -> Bool[Array, ""]:
    """Tell from their squared norm whether all gradients are finite; a norm too large is not."""
    return jnp.isfinite(square_norm)


def unscaled_square_norm(square_norm: Float[Array, ""], state: LossScale) -> Float[Array, ""]:
    """Return the squared norm that the gradients have once they are divided by the scale.

    >>> state = initial_loss_scale(LossScaleConfig(initial=8.0))
    >>> float(unscaled_square_norm(jnp.float32(128), state))
    2.0
    """
    return square_norm / state.scale / state.scale


def taken_if(finite: Bool[Array, ""], new: Tree, old: Tree) -> Tree:
    """Return parameters, moments or any other tree as a step left it, or before if it is skipped.

    >>> float(taken_if(jnp.isfinite(jnp.float32(jnp.nan)), jnp.float32(jnp.nan), jnp.float32(3)))
    3.0
    """
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)


def adjust(config: LossScaleConfig, state: LossScale, *, finite: Bool[Array, ""]) -> LossScale:
    """Return the state after a step: lower if it overflowed, higher from time to time.

    >>> config = LossScaleConfig(initial=8.0, growth_steps=1)
    >>> state = initial_loss_scale(config)
    >>> [float(adjust(config, state, finite=jnp.bool_(finite)).scale) for finite in (True, False)]
    [16.0, 4.0]
    """
    good_steps = jnp.where(finite, state.good_steps + 1, 0)
    grows = good_steps >= config.growth_steps
    higher = jnp.minimum(state.scale * config.factor, config.largest)
    lower = jnp.maximum(state.scale / config.factor, 1)
    return LossScale(
        scale=jnp.where(finite, jnp.where(grows, higher, state.scale), lower),
        good_steps=jnp.where(grows, 0, good_steps),
        skipped=state.skipped + jnp.where(finite, 0, 1),
    )
