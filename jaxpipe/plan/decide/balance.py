"""Balanced partition: minimise the slowest stage, with more layers on faster devices."""

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.partition import Cut


def balanced_cut(profile: Profile, slow: np.ndarray) -> Cut:
    """Return the partition with the fastest slowest stage, if stage `s` is `slow[s]` times slower.

    Ties are broken by the least sum of squares. The first stage also computes the embedding, the
    last the head.

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
    # Dynamic program over (stages, layers): the best prefix is part of the best partition.
    best = {0: (0.0, 0.0, ())}  # layers so far: slowest stage, sum of squares, cut
    for stage in range(num_stages):
        left = num_stages - stage - 1  # stages to come, each of which needs a layer
        best = {
            # Tuples compare from the left; the cut decides last: ties are the same in every run.
            stop: min(
                _extended(best[start], slow[stage] * (ends[stop] - ends[start] + extra[stage]), n)
                for start in best
                if (n := stop - start) > 0
            )
            for stop in range(stage + 1, num_layers - left + 1)
        }
    return best[num_layers][2]


def _extended(
    before: tuple[float, float, Cut], seconds: float, num_layers: int
) -> tuple[float, float, Cut]:
    slowest, squares, cut = before
    return max(slowest, float(seconds)), squares + float(seconds) ** 2, (*cut, num_layers)
