"""How long a call takes: warm, repeated, and with its spread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Clock = Callable[[], float]
"""Seconds since some moment, such as `time.perf_counter`."""

_LEAST = 3


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
    """Return how long `call` takes until all that it returns is computed.

    It is called `warmup` times unseen, and then `repeats` times, fewer where `budget_s` seconds are
    gone by then, but at least three times if so many are asked for.

    >>> ticks = iter([0.0, 1.0, 4.0, 6.0, 10.0, 11.0])
    >>> time_calls(lambda: None, warmup=0, repeats=3, budget_s=9.0, clock=lambda: next(ticks))
    Timing(median_s=1.0, p10_s=1.0, p90_s=1.8, repeats=3)
    """
    for _ in range(warmup):
        jax.block_until_ready(call())
    taken_s: list[float] = []
    while len(taken_s) < repeats and (len(taken_s) < _LEAST or sum(taken_s) < budget_s):
        start_s = clock()
        jax.block_until_ready(call())
        taken_s.append(clock() - start_s)
    p10_s, median_s, p90_s = np.percentile(taken_s, (10, 50, 90))
    return Timing(
        median_s=float(median_s), p10_s=float(p10_s), p90_s=float(p90_s), repeats=len(taken_s)
    )
