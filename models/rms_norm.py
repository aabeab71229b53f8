"""RMSNorm, with a factor for each number of a vector.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.llama_config import LlamaConfig


class RmsNorm(nnx.Module):
    """Normalise the last dim, with statistics and factors in float32, rounded once.

    Args:
        config: the epsilon, and whether the factor is 1 + the parameter.
        width: the size of the last dim.
        rngs: the source of fresh parameters, which are constants.
        divisor: what the normalised vectors are divided by.
    """

    def __init__(
        self, config: LlamaConfig, width: int, *, rngs: nnx.Rngs, divisor: float = 1.0
    ) -> None:
        self.epsilon = config.norm_epsilon
        self.divisor = divisor
        self.offset = 1.0 if config.norm_offset else 0.0
        self.dtype = config.compute_dtype
        fresh = nnx.initializers.constant(1 - self.offset)
        self.scale = nnx.Param(fresh(rngs.params(), (width,)))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Return the normalised vectors, in the format of computation."""
        wide = x.astype(accumulation_dtype(x.dtype))
        inverse = jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.epsilon)
        normed = wide * inverse * (self.offset + self.scale[...])
        return (normed if self.divisor == 1 else normed / self.divisor).astype(self.dtype)
