"""AdamW with warm-up and cosine decay, clipped by the global norm over all stages."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxpipe.runtime.config import OptimizerConfig
from jaxpipe.runtime.stage.model import Parameters


def learning_rate(config: OptimizerConfig, *, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates done."""
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (config.warmup_steps + 1),
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=max(num_steps, config.warmup_steps + 1),
        end_value=config.learning_rate * config.final_fraction,
    )


def adamw(
    config: OptimizerConfig, *, num_steps: int, decayed: Parameters | None = None
) -> optax.GradientTransformation:
    """Return the optimizer of one stage, for gradients that are clipped already.

    `decayed` tells for each leaf whether it decays, where leaves are not in their shapes.
    """
    return optax.adamw(
        learning_rate(config, num_steps=num_steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=matrices if decayed is None else decayed,
    )


def clip_factor(config: OptimizerConfig, square_norm: Float[Array, ""]) -> Float[Array, ""]:
    """Return what gradients are multiplied by so that their global norm is `clip_norm` at most."""
    norm = jnp.sqrt(square_norm)
    return jnp.minimum(1.0, config.clip_norm / jnp.maximum(norm, config.clip_norm))


def matrices(params: Parameters) -> Parameters:
    """Tell weight matrices from biases and norms; a block's leaves have one dim more, the layer."""
    return {
        part: jax.tree.map(lambda leaf, extra=part == "blocks": leaf.ndim - extra >= 2, leaves)
        for part, leaves in params.items()
    }
