"""Frequencies of rotary positions: what each pair turns per token; without jax.

The pair i of a width w turns by b^(-2i / w), where b is the base, or by less where the frequencies
are scaled.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section
3.2.2; linear scaling: Chen et al. 2023, "Extending Context Window of Large Language Models via
Positional Interpolation", equation 4; NTK: Peng et al. 2023, "YaRN", definition 1; Llama-3 scaling:
Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.4, and its published configuration.
"""

import math

import numpy as np
from jaxtyping import Float

from jaxpipe.models.llama.llama_config import LlamaConfig, RopeScaling


def frequencies(config: LlamaConfig) -> Float[np.ndarray, " pairs"]:
    """Return the angle by which each pair turns per token [radians].

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, num_kv_heads=1, hidden=8, sequence=8)
    >>> frequencies(LlamaConfig(**sizes, vocabulary=8, rope_base=100.0)).tolist()
    [1.0, 0.1]
    """
    base, factor = config.rope_base, config.rope_factor
    if config.rope_scaling is RopeScaling.NTK:
        base = ntk_base(config)
    plain = base ** (-np.arange(0, config.width, 2) / config.width)
    if config.rope_scaling is RopeScaling.LINEAR:
        return plain / factor
    if config.rope_scaling is RopeScaling.LLAMA3:
        turns = config.rope_sequence * plain / (2 * math.pi)
        ramp = np.clip((turns - config.rope_low) / (config.rope_high - config.rope_low), 0, 1)
        return ramp * plain + (1 - ramp) * plain / factor
    return plain


def ntk_base(config: LlamaConfig) -> float:
    """Return the base with which the lowest frequency is divided by `rope_factor`."""
    width = config.width
    # A width of 2 has one frequency, which no base changes.
    return config.rope_base * config.rope_factor ** (width / max(width - 2, 1))
