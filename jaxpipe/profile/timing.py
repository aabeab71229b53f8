"""Timing of calls with their spread, and of the fastest matrix products of a device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Clock = Callable[[], float]
"""Seconds since an arbitrary origin, for example `time.perf_counter`."""

_MIN_CALLS = 3
_SIZES = (512, 1024, 2048, 4096, 8192)
_LONG_S = 0.05
"""Products of this length are large enough: the overhead of the call is negligible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The seconds of a call: the median, and the tenth and ninetieth percentile of `repeats`."""

    median_s: float
    p10_s: float
    p90_s: float
    repeats: int


def time_calls(
    call: Callable[[], Any], *, warmup: int, repeats: int, budget_s: float, clock: Clock
) -> Timing:
    """Return the seconds of `call` until its result is computed.

    After `warmup` calls, `repeats` calls are timed, or as many as start within `budget_s` seconds,
    but at least three unless `repeats` is less.

    >>> ticks = iter([0.0, 1.0, 4.0, 6.0, 10.0, 11.0])
    >>> time_calls(lambda: None, warmup=0, repeats=3, budget_s=9.0, clock=lambda: next(ticks))
    Timing(median_s=1.0, p10_s=1.0, p90_s=1.8, repeats=3)
    """
    for _ in range(warmup):
        # JAX returns before a result is computed.
        jax.block_until_ready(call())
    taken_s: list[float] = []
    # The budget counts the calls alone, not the warm-up, which may compile.
    while len(taken_s) < repeats and (len(taken_s) < _MIN_CALLS or sum(taken_s) < budget_s):
        start_s = clock()
        jax.block_until_ready(call())
        taken_s.append(clock() - start_s)
    p10_s, median_s, p90_s = np.percentile(taken_s, (10, 50, 90))
    return Timing(
        median_s=float(median_s), p10_s=float(p10_s), p90_s=float(p90_s), repeats=len(taken_s)
    )


def matrix_peak_flops_per_s(*, dtype: str, clock: Clock, repeats: int = 5) -> float:
    """Return the largest FLOP/s of square matrix products in `dtype`, accumulated in float32.

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
