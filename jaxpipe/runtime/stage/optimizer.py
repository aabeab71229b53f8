"""AdamW with warm-up and cosine decay, clipped by the global norm over all stages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxpipe.runtime.config import OptimizerConfig
from jaxpipe.runtime.stage.model import Parameters


def learning_rate(config: OptimizerConfig, *, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates."""
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (config.warmup_steps + 1),  # the first step is not 0
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        # optax counts the warm-up as part of the decay, and needs at least one step after it.
        decay_steps=max(num_steps, config.warmup_steps + 1),
        end_value=config.learning_rate * config.final_fraction,
    )


def adamw(
    config: OptimizerConfig, *, num_steps: int, decayed: Parameters | None = None
) -> optax.GradientTransformation:
    """Return the optimizer of one stage, for gradients that are clipped already.

    `decayed` is a mask of the leaves with weight decay, for trees of flat pieces, whose shapes do
    not show which are matrices.
    """
    return optax.adamw(
        learning_rate(config, num_steps=num_steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=matrices if decayed is None else decayed,
    )


def clip_factor(
    config: OptimizerConfig, square_norm: Float[Array | np.ndarray, ""] | np.floating
) -> Float[Array, ""]:
    """Return the factor that limits the global norm of the gradients to `clip_norm`."""
    norm = jnp.sqrt(square_norm)
    # The inner maximum avoids a division by a norm of zero.
    return jnp.minimum(1.0, config.clip_norm / jnp.maximum(norm, config.clip_norm))


def matrices(params: Parameters) -> Parameters:
    """Return a mask of the weight matrices; leaves of blocks have one more dim, the layer."""
    return {
        part: jax.tree.map(lambda leaf, extra=part == "blocks": leaf.ndim - extra >= 2, leaves)
        for part, leaves in params.items()
    }
