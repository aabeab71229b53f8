"""Rotary positions: queries and keys are turned by angles that grow with the position.

The first half of a head's width and its second half are the coordinates of pairs.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section
3.2.2.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


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
    turned = positions[..., None] * jnp.asarray(angles, jnp.float32)
    cos, sin = (f(turned)[..., None, :] for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    pairs = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(pairs, axis=-1).astype(x.dtype)
