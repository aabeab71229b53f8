"""Local search: descend by swaps to a grouping that no swap improves."""

from collections.abc import Callable

import numpy as np

from jaxpipe.search.dtfm.cost import cross_hops, reach_hops
from jaxpipe.search.dtfm.matching import LARGEST_SUBSET_SIZE, bottleneck_matching
from jaxpipe.search.dtfm.network import Network
from jaxpipe.search.dtfm.path import cheapest_path
from jaxpipe.search.dtfm.swaps import Table, apply, swaps_of, tabulate, value

_EXACT_PATH = 10
"""The largest number of stages for an exact order during the search, which needs it often."""
_LARGEST_NEIGHBOURHOOD = 4096
"""The largest number of swaps to evaluate; of more, this many are drawn at random."""
_NUM_FOLLOWED = 32
"""The number of best swaps to evaluate again after the best one is made."""
_TOLERANCE_S = 1e-9
_TOLERANCE = 1e-12
"""Relative, where that is more: above the rounding of sums, below any gain that matters."""


def ordered(network: Network, members: np.ndarray) -> np.ndarray:
    """Return the groups, groups x members, in their best order, large ones aligned slot to slot.

    Large groups are ordered by a bound below their hops, which is close where many are alike.
    """
    # Exact matchings of large groups are too slow for every pair of groups.
    is_large = members.shape[1] > LARGEST_SUBSET_SIZE
    if is_large:
        ranks = reach_hops(network.ranks, members)
    else:
        ranks = cross_hops(network.ranks, members, symmetric=network.is_symmetric)
    stages = members[cheapest_path(network.seconds[ranks], largest_exact=_EXACT_PATH)]
    return align(network, stages) if is_large else stages


def align(network: Network, stages: np.ndarray) -> np.ndarray:
    """Return the stages, members permuted such that column r is one pipeline, joined at its best.

    The largest hop between consecutive stages is the bottleneck of their best matching.
    """
    aligned = stages.copy()
    for stage in range(1, len(stages)):
        hops = network.ranks[np.ix_(aligned[stage - 1], stages[stage])]
        aligned[stage] = stages[stage][list(bottleneck_matching(hops).columns)]
    return aligned


def descend(
    network: Network,
    members: np.ndarray,
    *,
    random: np.random.Generator,
    stop: Callable[[], bool],
) -> Table:
    """Return groups, groups x members, that no swap of two devices improves, or once `stop` says.

    Makes the best swaps stage by stage; when none is left, puts the stages into their best order,
    and repeats if that has helped.
    """
    table = tabulate(network, ordered(network, members))
    while not stop():
        while _sweep(network, table, random=random, stop=stop):
            pass
        again = tabulate(network, ordered(network, table.stages))
        # Without the tolerance, rounding errors alone could let this loop go round forever.
        if again.total > table.total - _tolerance(table.total):
            break  # in another order as good as this one, a swap might help
        table = again
    return table


def _sweep(
    network: Network, table: Table, *, random: np.random.Generator, stop: Callable[[], bool]
) -> bool:
    """Make the best swaps of each stage in turn; return whether there was any."""
    improved = False
    for stage in random.permutation(len(table.stages)):
        if stop():
            return False
        improved |= _best_swaps(network, table, stage=int(stage), random=random)
    return improved


def _best_swaps(network: Network, table: Table, *, stage: int, random: np.random.Generator) -> bool:
    """Make the best swap of a stage, then those of the next best that still help."""
    swaps = swaps_of(network, table, stage=stage)
    if len(swaps) > _LARGEST_NEIGHBOURHOOD:
        swaps = swaps[random.choice(len(swaps), _LARGEST_NEIGHBOURHOOD, replace=False)]
    improved = False
    while len(swaps):
        totals, spreads = value(network, table, swaps)
        order = np.lexsort((spreads, totals))[:_NUM_FOLLOWED]  # the last key sorts first
        if not _is_better(float(totals[order[0]]), float(spreads[order[0]]), table):
            break
        best = int(order[0])
        # Swaps that share a device with the one just made are no longer valid.
        apart = (swaps.slot != swaps.slot[best]) & (swaps.entering != swaps.entering[best])
        apply(network, table, swaps, best)
        improved = True
        swaps = swaps[order[apart[order]]]
    return improved


def _is_better(total: float, spread: float, table: Table) -> bool:
    if abs(total - table.total) <= _tolerance(table.total):
        return spread < table.spread - _tolerance(table.spread)
    return total < table.total


def _tolerance(value: float) -> float:
    return max(_TOLERANCE_S, _TOLERANCE * abs(value))
