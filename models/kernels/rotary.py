"""Rotary positions: queries and keys are turned by angles that grow with the position.

The first half of a head's width and its second half are the coordinates of pairs. The pair i of a
width w turns by b^(-2i / w) per token, where b is the base, or by less where the frequencies are
scaled.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section
3.2.2; linear scaling: Chen et al. 2023, "Extending Context Window of Large Language Models via
Positional Interpolation", equation 4; NTK: Peng et al. 2023, "YaRN", definition 1; Llama-3 scaling:
Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.4, and its published configuration.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.llama_config import LlamaConfig, RopeScaling


def frequencies(config: LlamaConfig) -> Float[np.ndarray, " pairs"]:
    """Return the angle by which each pair turns per token [radians].

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, num_kv_heads=1, hidden=8, sequence=8)
    >>> frequencies(LlamaConfig(**sizes, vocabulary=8, rope_base=100.0)).tolist()
    [1.0, 0.1]
    """
    base, factor = config.rope_base, config.rope_factor
    if config.rope_scaling is RopeScaling.NTK:
        base = config.ntk_base
    plain = base ** (-np.arange(0, config.width, 2) / config.width)
    if config.rope_scaling is RopeScaling.LINEAR:
        return plain / factor
    if config.rope_scaling is RopeScaling.LLAMA3:
        turns = config.rope_sequence * plain / (2 * math.pi)
        ramp = np.clip((turns - config.rope_low) / (config.rope_high - config.rope_low), 0, 1)
        return ramp * plain + (1 - ramp) * plain / factor
    return plain


def rotate(
    x: Float[Array, "batch seq heads width"],
    angles: Float[np.ndarray, " pairs"],
    positions: Int[Array, "batch seq"] | None = None,
) -> Float[Array, "batch seq heads width"]:
    """Return queries or keys, turned by their positions; computed in float32.

    By default positions count from 0 in each sequence.

    >>> quarter = np.array([np.pi / 2])
    >>> rotate(jnp.array([[[[1.0, 0.0]], [[1.0, 0.0]]]]), quarter).round(3)[0, 1, 0].tolist()
    [-0.0, 1.0]
    """
    positions = jnp.arange(x.shape[1]) if positions is None else positions
    wide = accumulation_dtype(x.dtype)
    turned = positions[..., None] * jnp.asarray(angles, wide)
    cos, sin = (f(turned)[..., None, :] for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x.astype(wide), 2, axis=-1)
    pairs = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(pairs, axis=-1).astype(x.dtype)
