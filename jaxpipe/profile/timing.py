"""Timing of calls with their spread, and of the fastest matrix products of a device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

    def divided(self, number: float) -> "Timing":
        """Return the seconds of one of `number` equal parts of the call."""
        return replace(
            self,
            median_s=self.median_s / number,
            p10_s=self.p10_s / number,
            p90_s=self.p90_s / number,
        )


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
    (timing,) = time_in_turn(
        (call,), warmup=warmup, repeats=repeats, budget_s=budget_s, clock=clock
    )
    return timing


def time_in_turn(
    calls: Sequence[Callable[[], Any]],
    *,
    warmup: int,
    repeats: int,
    budget_s: float,
    clock: Clock,
) -> tuple[Timing, ...]:
    """Return the seconds of each of `calls`, made in turn as a step makes them.

    A call that is repeated alone finds its arrays in the cache; in a step others come between.
    Counts are those of `time_calls`, in rounds of all calls.

    On an accelerator a step dispatches ahead: while the device computes, the host prepares the next
    call. As many rounds follow without a wait in between. If they take less time than those with
    waits, all seconds count by the ratio.

    >>> ticks = iter([0.0, 1.0, 1.0, 5.0])
    >>> nothing = lambda: None
    >>> first, second = time_in_turn(
    ...     (nothing, nothing), warmup=0, repeats=1, budget_s=9.0, clock=lambda: next(ticks)
    ... )
    >>> first.median_s, second.median_s
    (1.0, 4.0)
    """
    for _ in range(warmup):
        for call in calls:
            # JAX returns before a result is computed.
            jax.block_until_ready(call())
    rounds: list[list[float]] = []
    # The budget counts the calls alone, not the warm-up, which may compile.
    while len(rounds) < repeats and (len(rounds) < _MIN_CALLS or np.sum(rounds) < budget_s):
        rounds.append([_seconds(call, clock) for call in calls])
    timings = tuple(
        Timing(
            median_s=float(median_s), p10_s=float(p10_s), p90_s=float(p90_s), repeats=len(rounds)
        )
        for p10_s, median_s, p90_s in np.percentile(rounds, (10, 50, 90), axis=0).T
    )
    if jax.default_backend() == "cpu":  # where a call computes before it returns, or soon after
        return timings
    waited_s = len(rounds) * sum(timing.median_s for timing in timings)
    faster = max(1.0, waited_s / _seconds_ahead(calls, clock, rounds=len(rounds)))
    return tuple(timing.divided(faster) for timing in timings)


def _seconds(call: Callable[[], Any], clock: Clock) -> float:
    start_s = clock()
    jax.block_until_ready(call())
    return clock() - start_s


def _seconds_ahead(calls: Sequence[Callable[[], Any]], clock: Clock, *, rounds: int) -> float:
    """Return the seconds of rounds of calls, of which only the last is waited for."""
    start_s, results = clock(), None
    for _ in range(rounds):
        results = [call() for call in calls]
    jax.block_until_ready(results)
    return clock() - start_s


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
