"""The optimizer of a stage by its name, its learning rate, and the clip over all stages."""

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from optax.contrib import MuonDimensionNumbers
from optax.contrib import muon as optax_muon

from jaxpipe.runtime.stage.adafactor import adafactor_directions
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer_config import Decayed, OptimizerConfig, Schedule

MUON_RMS = 0.2
"""The root mean square of Muon's updates, near that of AdamW's: one learning rate suits both.

Source: Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2.
"""


_NEAR = 1e-3
"""Norms of equal gradients on unlike devices differ by far less, relatively."""


def learning_rate(config: OptimizerConfig, *, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates."""
    peak, warmup = config.learning_rate, config.warmup_steps
    # At least one step after the warm-up.
    end, final = max(num_steps, warmup + 1), peak * config.final_fraction
    first = peak / (warmup + 1)  # the first step is not 0
    if config.schedule is Schedule.COSINE:
        return optax.warmup_cosine_decay_schedule(
            init_value=first,
            peak_value=peak,
            warmup_steps=warmup,
            decay_steps=end,  # optax counts the warm-up as part of the decay
            end_value=final,
        )
    rise = optax.linear_schedule(first, peak, warmup)
    if config.schedule is Schedule.CONSTANT:
        return optax.join_schedules([rise, optax.constant_schedule(peak)], [warmup])
    if config.schedule is Schedule.LINEAR:
        return optax.join_schedules(
            [rise, optax.linear_schedule(peak, final, end - warmup)], [warmup]
        )
    start = max(warmup, end - round(config.decay_fraction * end))
    fall = optax.linear_schedule(peak, final, max(end - start, 1))
    return optax.join_schedules([rise, optax.constant_schedule(peak), fall], [warmup, start])


def rate_after(num_updates: int, config: OptimizerConfig, *, num_steps: int) -> float:
    """Return the learning rate after a number of updates."""
    return float(_rate(config, num_steps, num_updates))


# Compiled as one: its operations one by one take 0.3 s the first time, this 0.04 (measured).
@partial(jax.jit, static_argnums=(0, 1))
def _rate(config: OptimizerConfig, num_steps: int, num_updates: Int[Array, ""]) -> Array:
    return jnp.asarray(learning_rate(config, num_steps=num_steps)(num_updates))


def stage_optimizer(
    config: OptimizerConfig, *, num_steps: int, decayed: Parameters | None = None
) -> optax.GradientTransformation:
    """Return the optimizer of one stage, for gradients that are clipped already.

    `decayed` is a mask of the leaves with weight decay, for trees of flat pieces, whose shapes do
    not show which are matrices. Every optimizer treats each layer by itself, so that a partition of
    the layers changes no update but for rounding.
    """
    rate = learning_rate(config, num_steps=num_steps)
    mask = decay_mask(config) if decayed is None else decayed
    build = resolve_name(config.name.facts.build)
    return build(config, rate, mask)


def adamw(config: OptimizerConfig, rate: optax.Schedule, mask: Any) -> optax.GradientTransformation:
    """Return AdamW."""
    return optax.adamw(
        rate,
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=mask,
    )


def lion(config: OptimizerConfig, rate: optax.Schedule, mask: Any) -> optax.GradientTransformation:
    """Return Lion."""
    return optax.lion(
        rate, b1=config.beta1, b2=config.beta2, weight_decay=config.weight_decay, mask=mask
    )


def sgd(config: OptimizerConfig, rate: optax.Schedule, mask: Any) -> optax.GradientTransformation:
    """Return gradient descent with momentum; without one, there is no moment to keep."""
    directions = optax.trace(config.beta1) if config.beta1 else optax.identity()
    return _decayed(directions, config, rate, mask)


def muon(config: OptimizerConfig, rate: optax.Schedule, mask: Any) -> optax.GradientTransformation:
    """Return Muon for the matrices of layers, and Adam for all else."""
    return _decayed(_muon_directions(config), config, rate, mask)


def adafactor(
    config: OptimizerConfig, rate: optax.Schedule, mask: Any
) -> optax.GradientTransformation:
    """Return Adafactor."""
    return _decayed(adafactor_directions(), config, rate, mask)


def _decayed(
    directions: optax.GradientTransformation,
    config: OptimizerConfig,
    rate: optax.Schedule,
    mask: Any,
) -> optax.GradientTransformation:
    """Return directions with weight decay and learning rate, if optax has no whole optimizer."""
    return optax.chain(
        directions,
        optax.add_decayed_weights(config.weight_decay, mask),
        optax.scale_by_learning_rate(rate),
    )


def _muon_directions(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the directions of Muon, and of Adam for what is no matrix of a layer.

    Both momenta are Nesterov's, as in `optax.contrib.muon`.
    """
    directions = optax_muon(
        1.0,
        beta=config.beta1,
        eps=config.epsilon,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        adam_learning_rate=1.0,
        muon_weight_dimension_numbers=_matrix_dims,
        consistent_rms=MUON_RMS,
    )
    # optax returns steps downhill; decay and the learning rate are those of all optimizers.
    return optax.chain(directions, optax.scale(-1.0))


def _matrix_dims(params: Any) -> Any:
    """Return which dims of each leaf are the matrix that Muon orthogonalises; None for Adam.

    Other dims are batches: the layer, experts, and of qkv the three kinds of products.
    """

    def dims(path: tuple[Any, ...], leaf: Array) -> MuonDimensionNumbers | None:
        if leaf.ndim < 3:  # the layer is the first dim
            return None
        is_qkv = leaf.ndim == 4 and any(getattr(key, "key", None) == "qkv" for key in path)
        return MuonDimensionNumbers(1 if is_qkv else leaf.ndim - 2, leaf.ndim - 1)

    none = jax.tree.map(lambda _: None, {k: v for k, v in params.items() if k != "blocks"})
    if "blocks" not in params:
        return none
    return {**none, "blocks": jax.tree.map_with_path(dims, params["blocks"])}


def is_unclipped(square_norm: float, clip_norm: float) -> bool:
    """Return whether the clip factor is 1, also for a norm that differs in its last bits.

    False where the norm is not finite.

    >>> [is_unclipped(norm**2, 1.0) for norm in (0.5, 0.9999, float("inf"), float("nan"))]
    [True, False, False, False]
    """
    return square_norm < (clip_norm * (1 - _NEAR)) ** 2


def clip_factor(
    config: OptimizerConfig, square_norm: Float[Array | np.ndarray, ""] | np.floating
) -> Float[Array, ""]:
    """Return the factor that limits the global norm of the gradients to `clip_norm`."""
    norm = jnp.sqrt(square_norm)
    # The inner maximum avoids a division by a norm of zero.
    return jnp.minimum(1.0, config.clip_norm / jnp.maximum(norm, config.clip_norm))


def decay_mask(config: OptimizerConfig) -> Callable[[Parameters], Parameters]:
    """Return the function from parameters to the mask of those with weight decay."""
    if config.decayed is Decayed.ALL:
        return lambda params: jax.tree.map(lambda _: True, params)
    if config.decayed is Decayed.MATRICES:
        return matrices
    return lambda params: {
        part: mask if part == "blocks" else jax.tree.map(lambda _: False, mask)
        for part, mask in matrices(params).items()
    }


def matrices(params: Parameters) -> Parameters:
    """Return a mask of the weight matrices; leaves of blocks have one more dim, the layer."""
    return {
        part: jax.tree.map(lambda leaf, extra=part == "blocks": leaf.ndim - extra >= 2, leaves)
        for part, leaves in params.items()
    }
