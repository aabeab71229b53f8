"""The cut of the layers for stages of given kinds, in a given order: the least slowest stage."""

from bisect import bisect_right
from collections.abc import Sequence

from jaxpipe.plan.layout.layout import Group
from jaxpipe.plan.layout.layout_task import StageCosts
from jaxpipe.plan.partition import Cut

_HALVINGS = 16


def greedy_cut(
    costs: StageCosts, kinds: Sequence[Group], *, num_layers: int, microbatch: int
) -> Cut | None:
    """Return the cut with the least slowest stage, messages included; None if memory is too small.

    If any cut keeps all stages under a time, then so does the one in which each stage, from the
    first on, takes as many layers as it can. So the time is found by bisection, within a 65,000th
    of the whole model's.
    """
    num_stages = len(kinds)
    if num_stages > num_layers:
        return None
    sums = [costs.layer_sums(kind, microbatch) for kind in kinds]
    hops_s = _hops_s(costs, kinds, microbatch)

    def filled(limit_s: float) -> Cut | None:
        first, cut = 0, []
        for stage, kind in enumerate(kinds):
            # One layer at least for each stage that follows.
            most = num_layers - (num_stages - 1 - stage)
            room_s = sums[stage][first] + limit_s - hops_s[stage]
            end = min(most, bisect_right(sums[stage], room_s) - 1)
            while end > first and not costs.fits_gpus(
                kind, (first, end), num_stages - stage, microbatch
            ):
                end -= 1
            if end <= first:
                return None
            cut.append(end - first)
            first = end
        return tuple(cut) if first == num_layers else None

    high_s = max(each[-1] for each in sums) + max(hops_s)
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


def _hops_s(costs: StageCosts, kinds: Sequence[Group], microbatch: int) -> list[float]:
    """Return the seconds of the messages that each stage sends for a microbatch."""
    hops_s = [0.0] * len(kinds)
    for stage in range(len(kinds) - 1):
        hops_s[stage] += costs.hop_s(kinds[stage], kinds[stage + 1], microbatch)
        hops_s[stage + 1] += costs.hop_s(kinds[stage + 1], kinds[stage], microbatch)
    return hops_s
