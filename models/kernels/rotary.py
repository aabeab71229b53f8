"""Rotary positions: queries and keys are turned by angles that grow with the position.

The first half of what is turned of a head and its second half are the coordinates of pairs. The
pair i of a width w turns by b^(-2i / w) per token, where b is the base, or by less where the
frequencies are scaled.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section
3.2.2; linear scaling: Chen et al. 2023, "Extending Context Window of Large Language Models via
Positional Interpolation", equation 4; NTK: Peng et al. 2023, "YaRN", definition 1; YaRN: section
3.4; Llama-3 scaling: Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.4, and its
published configuration; LongRoPE: Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond
2 Million Tokens", and the code of Phi 3 in `transformers`.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling


def frequencies(
    config: LlamaConfig, lengths: int | Int[Array, "batch seq"] = 1
) -> Float[np.ndarray, " pairs"] | Float[Array, "batch seq pairs"]:
    """Return the angle by which each pair turns per token [radians].

    `lengths` are those of the texts of all tokens [tokens]. Only LongRoPE reads them: its angles
    are those of all tokens for one length, and else those of each token or row.

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, num_kv_heads=1, hidden=8, sequence=8)
    >>> frequencies(LlamaConfig(**sizes, vocabulary=8, rope_base=100.0)).tolist()
    [1.0, 0.1]
    """
    base, factor, width = config.rope_base, config.rope_factor, config.turned_width
    if config.rope_scaling is RopeScaling.NTK:
        base = config.ntk_base
    plain = base ** (-np.arange(0, width, 2) / width)
    if config.rope_scaling is RopeScaling.LINEAR:
        return plain / factor
    if config.rope_scaling is RopeScaling.LLAMA3:
        turns = config.rope_sequence * plain / (2 * math.pi)
        ramp = np.clip((turns - config.rope_low) / (config.rope_high - config.rope_low), 0, 1)
        return ramp * plain + (1 - ramp) * plain / factor
    if config.rope_scaling is RopeScaling.YARN:
        ramp = _yarn_ramp(config)
        return ramp * plain + (1 - ramp) * plain / factor
    if config.rope_scaling is RopeScaling.LONGROPE:
        short, long = plain / np.array(config.rope_short), plain / np.array(config.rope_long)
        if isinstance(lengths, int):
            return long if lengths > config.switch_length else short
        return jnp.where(lengths[..., None] > config.switch_length, long, short)
    return plain


def magnitude(config: LlamaConfig) -> float:
    """Return the factor of turned queries and keys; with it, scores grow by its square.

    Source: Peng et al. 2023, "YaRN", equation 15; of LongRoPE the code of Phi 3 in
    `transformers`.
    """
    growth = math.log(config.rope_factor)
    if config.rope_scaling is RopeScaling.YARN:
        return config.rope_magnitude or 0.1 * growth + 1.0
    if config.rope_scaling is RopeScaling.LONGROPE:
        return config.rope_magnitude or math.sqrt(1 + growth / math.log(config.rope_sequence))
    return 1.0


def _yarn_ramp(config: LlamaConfig) -> Float[np.ndarray, " pairs"]:
    """Return 1 for high frequencies, 0 for low ones, and what is between for those between.

    The ends are the numbers of the frequencies that turn `rope_high` and `rope_low` times within
    the sequence of pretraining, by default rounded outwards. Source: Peng et al. 2023, "YaRN",
    equation 13, and its published code, which this follows where they differ.
    """
    width = config.turned_width

    def number_of(turns: float) -> float:
        ratio = config.rope_sequence / (turns * 2 * math.pi)
        return width * math.log(ratio) / (2 * math.log(config.rope_base))

    first, last = number_of(config.rope_high), number_of(config.rope_low)
    if config.rope_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    length = last - first or 0.001
    return 1 - np.clip((np.arange(width // 2) - first) / length, 0, 1)


def rotate(
    x: Float[Array, "batch seq heads width"],
    angles: Float[np.ndarray, " pairs"] | Float[Array, "batch _ pairs"],
    positions: Int[Array, "batch seq"] | None = None,
    *,
    magnitude: float = 1.0,
) -> Float[Array, "batch seq heads width"]:
    """Return queries or keys, turned by their positions; computed in float32.

    By default positions count from 0 in each sequence. What is wider than the pairs stays as it is;
    what is turned is multiplied by `magnitude`.

    >>> quarter = np.array([np.pi / 2])
    >>> rotate(jnp.array([[[[1.0, 0.0]], [[1.0, 0.0]]]]), quarter).round(3)[0, 1, 0].tolist()
    [-0.0, 1.0]
    """
    positions = jnp.arange(x.shape[1]) if positions is None else positions
    wide = accumulation_dtype(x.dtype)
    turned = positions[..., None] * jnp.asarray(angles, wide)
    cos, sin = (f(turned)[..., None, :] for f in (jnp.cos, jnp.sin))
    if magnitude != 1:
        cos, sin = magnitude * cos, magnitude * sin
    num_pairs = angles.shape[-1]
    first, second, *others = jnp.split(x.astype(wide), _cuts(num_pairs, x.shape[-1]), axis=-1)
    pairs = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate((*pairs, *others), axis=-1).astype(x.dtype)


def _cuts(num_pairs: int, width: int) -> list[int]:
    """Return where the second halves of pairs begin, and what is not turned, if anything."""
    return [num_pairs] if 2 * num_pairs == width else [num_pairs, 2 * num_pairs]
