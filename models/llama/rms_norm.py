"""RMSNorm: division by the root of the mean square, and one factor for each place of the width.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxpipe.models.llama.llama_config import LlamaConfig


class RmsNorm(nnx.Module):
    """Normalise the last dim, with statistics and factors in float32, rounded once.

    Args:
        config: the epsilon, and whether the factor is 1 + the parameter.
        width: the size of the last dim.
        rngs: the source of fresh parameters, which are constants.
    """

    def __init__(self, config: LlamaConfig, width: int, *, rngs: nnx.Rngs) -> None:
        self.epsilon = config.norm_epsilon
        self.offset = 1.0 if config.norm_offset else 0.0
        self.dtype = config.compute_dtype
        fresh = nnx.initializers.constant(1 - self.offset)
        self.scale = nnx.Param(fresh(rngs.params(), (width,)))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Return the normalised vectors, in the format of computation."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.epsilon)
        return (wide * inverse * (self.offset + self.scale[...])).astype(self.dtype)
