"""What the device reaches at best: the FLOP/s of large matrix products, measured."""

import jax
import jax.numpy as jnp

from jaxpipe.profile.timing import Clock, time_calls

_SIZES = (512, 1024, 2048, 4096, 8192)
_LONG_S = 0.05
"""A product that takes so long is large enough: calling it costs next to nothing."""


def matrix_peak_flops_per_s(*, dtype: str, clock: Clock, repeats: int = 5) -> float:
    """Return the most FLOP/s that square matrix products reach in `dtype`, summed in float32.

    Products grow until one takes 50 ms; of each size the median call counts.
    """

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32)

    best = 0.0
    for size in _SIZES:
        a, b = (jnp.full((size, size), value, dtype) for value in (0.5, 0.25))
        timing = time_calls(
            lambda a=a, b=b: product(a, b), warmup=1, repeats=repeats, budget_s=1.0, clock=clock
        )
        best = max(best, 2 * size**3 / timing.median_s)
        if timing.median_s > _LONG_S:
            break
    return best
