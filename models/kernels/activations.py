"""Activations of MLPs: computed in float32 at least, rounded once."""

from collections.abc import Callable
from functools import partial
from typing import Final

import jax
from jaxtyping import Array

from jaxpipe.models.kernels.accumulation import accumulation_dtype

_Activation = Callable[..., Array]


def rounded_once(activation: _Activation) -> _Activation:
    """Return an elementwise function of arrays of one format that rounds its results once.

    In 16 bits, its constants, its steps and those of its gradients would be rounded as well: GELU
    has a factor of 0.797 in bfloat16 for 0.79788. The backward reads the arguments again, and keeps
    nothing else.

    >>> import jax.numpy as jnp
    >>> x = jnp.asarray([2.0, -1.0], jnp.bfloat16)
    >>> [str(f(x)[1]) for f in (jax.nn.gelu, gelu)]  # -0.15881 is exact
    ['-0.158203', '-0.15918']
    """

    def computed(*arguments: Array) -> Array:
        dtype = arguments[0].dtype
        wide = (argument.astype(accumulation_dtype(dtype)) for argument in arguments)
        return activation(*wide).astype(dtype)

    return jax.checkpoint(computed)


gelu: Final = rounded_once(partial(jax.nn.gelu, approximate=True))
"""GELU in its tanh form."""
