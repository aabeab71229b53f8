"""Dropout with an explicit key; without a key it is off."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key


def dropout(
    x: Float[Array, "..."], key: Key[Array, ""] | None, *, rate: float
) -> Float[Array, "..."]:
    """Return `x` with each element zeroed at probability `rate`, the rest scaled to the same mean.

    Where `key` is None or `rate` is 0, return `x` itself. The backward needs the mask alone, one
    byte per element.

    >>> x = jnp.ones(1000)
    >>> sorted(set(dropout(x, jax.random.key(0), rate=0.5).tolist()))
    [0.0, 2.0]
    >>> dropout(x, None, rate=0.5) is x
    True
    """
    if key is None or rate == 0:
        return x
    mask = jax.random.bernoulli(key, 1 - rate, x.shape)
    # The mask is drawn outside of `_drop`: recomputing it would draw it again.
    return _drop(x, mask, rate)


@partial(jax.checkpoint, static_argnums=2)
def _drop(x: Float[Array, "..."], mask: Bool[Array, "..."], rate: float) -> Float[Array, "..."]:
    # Without the checkpoint, `where` also keeps an array of zeros for the backward.
    return jnp.where(mask, x / (1 - rate), 0)
