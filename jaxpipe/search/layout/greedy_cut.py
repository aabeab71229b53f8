"""The cut of the layers for stages on given groups, in a given order: the least slowest stage."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from jaxpipe.plan.partition import Cut
from jaxpipe.search.layout.layout import Stage, facing
from jaxpipe.search.layout.layout_task import StageCosts

_HALVINGS = 16


def greedy_cut(
    costs: StageCosts, stages: Sequence[Stage], *, num_layers: int, microbatch: int
) -> Cut | None:
    """Return the cut with the least slowest stage, messages included; None if memory is too small.

    If any cut keeps all stages under a time, then so does the one in which each stage, from the
    first on, takes as many layers as it can. So the time is found by bisection, within a 65,000th
    of the whole model's.
    """
    num_stages = len(stages)
    if num_stages > num_layers:
        return None
    sums = [[costs.layer_sums(group, microbatch) for group, _ in stage] for stage in stages]
    hops_s = _hops_s(costs, stages, microbatch)

    def filled(limit_s: float) -> Cut | None:
        first, cut = 0, []
        for number, stage in enumerate(stages):
            # One layer at least for each stage that follows.
            end = num_layers - (num_stages - 1 - number)
            room_s = limit_s - hops_s[number]
            for each in sums[number]:
                end = min(end, bisect_right(each, each[first] + room_s) - 1)
            live = num_stages - number
            while end > first and not _fits(costs, stage, (first, end), live, microbatch):
                end -= 1
            if end <= first:
                return None
            cut.append(end - first)
            first = end
        return tuple(cut) if first == num_layers else None

    high_s = max(each[-1] for stage in sums for each in stage) + max(hops_s)
    best = filled(high_s)
    low_s = 0.0
    for _ in range(_HALVINGS if best is not None else 0):
        middle_s = (low_s + high_s) / 2
        found = filled(middle_s)
        if found is None:
            low_s = middle_s
        else:
            best, high_s = found, middle_s
    return best


def _fits(
    costs: StageCosts, stage: Stage, layers: tuple[int, int], num_live: int, microbatch: int
) -> bool:
    return all(costs.fits_gpus(group, layers, num_live, microbatch) for group, _ in stage)


def _hops_s(costs: StageCosts, stages: Sequence[Stage], microbatch: int) -> list[float]:
    """Return the seconds of the slowest messages that each stage sends for a microbatch."""
    hops_s = [0.0] * len(stages)
    for number, (stage, following) in enumerate(pairwise(stages)):
        pairs = list(facing(stage, following))
        hops_s[number] += max(costs.hop_s(one, other, microbatch) for one, other, _ in pairs)
        hops_s[number + 1] += max(costs.hop_s(other, one, microbatch) for one, other, _ in pairs)
    return hops_s
