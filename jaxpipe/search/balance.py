"""Balanced partition: minimise the slowest stage, with more layers on faster devices."""

from collections.abc import Callable
from math import inf
from typing import TypeVar

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.partition import Cut

_T = TypeVar("_T", float, tuple[float, Cut])


def balanced_cut(profile: Profile, slow: np.ndarray) -> Cut:
    """Return the partition with the fastest slowest stage, if stage `s` is `slow[s]` times slower.

    Ties are broken by the least sum of squares, then in favour of few layers in the first stages.
    The first stage also computes the embedding, the last the head.

    >>> from jaxpipe.plan.cost.layer_profile import flop_profile
    >>> profile = flop_profile(
    ...     num_layers=9, layer_flop=1.0, layer_parameters=0, layer_kept_bytes=0,
    ...     activation_bytes=0, flops_per_s=1.0,
    ... )
    >>> balanced_cut(profile, np.array([1.0, 2.0]))
    (6, 3)

    Cost: O(layers ** 2 * stages).

    Raises:
        PlanError: there are fewer layers than stages.
    """
    num_layers, num_stages = len(profile.layers), len(slow)
    if num_layers < num_stages:
        raise PlanError(
            f"each stage holds at least one layer: there are {num_stages} stages, but the model "
            f"has {num_layers} layers; use at most {num_layers} stages"
        )
    ends = np.cumsum([0.0, *(part.forward_s + part.backward_s for part in profile.layers)])
    extra = np.zeros(num_stages)
    extra[0] += profile.embed.forward_s + profile.embed.backward_s
    extra[-1] += profile.head.forward_s + profile.head.backward_s

    def seconds(stage: int, start: int, stop: int) -> float:
        return float(slow[stage] * (ends[stop] - ends[start] + extra[stage]))

    # Two passes: a prefix whose slowest stage is not the least may have the least squares.
    def slower(so_far: float, stage: int, start: int, stop: int) -> float:
        return max(so_far, seconds(stage, start, stop))

    slowest = _best(0.0, slower, num_layers, num_stages)

    def squares(so_far: tuple[float, Cut], stage: int, start: int, stop: int) -> tuple[float, Cut]:
        each = seconds(stage, start, stop)
        total = so_far[0] + each * each if each <= slowest else inf
        # Tuples compare from the left; the cut decides last: ties are the same in every run.
        return total, (*so_far[1], stop - start)

    return _best((0.0, ()), squares, num_layers, num_stages)[1]


def _best(
    nothing: _T,
    extended: Callable[[_T, int, int, int], _T],
    num_layers: int,
    num_stages: int,
) -> _T:
    """Return the least value of a partition, by a dynamic program over stages and layers.

    `extended` returns the value of a prefix with one more stage: of layers `start` to `stop`.
    """
    best = {0: nothing}  # by the layers so far
    for stage in range(num_stages):
        left = num_stages - stage - 1  # stages to come, each of which needs a layer
        best = {
            stop: min(extended(best[start], stage, start, stop) for start in best if start < stop)
            for stop in range(stage + 1, num_layers - left + 1)
        }
    return best[num_layers]
