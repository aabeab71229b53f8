"""Exhaustive search for the cheapest grouping, for about ten devices."""

from collections.abc import Iterator
from itertools import combinations
from math import comb, factorial

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.search.dtfm.cost import cross_hops, sync_seconds
from jaxpipe.search.dtfm.path import cheapest_path, path_cost
from jaxpipe.search.dtfm.weights import Weights

LARGEST_COUNT = 100_000
"""More groupings than this are refused: they would take minutes."""


def num_groupings(*, num_devices: int, num_groups: int, group_size: int) -> int:
    """Return in how many ways devices can be grouped, when neither order nor members' order counts.

    >>> num_groupings(num_devices=10, num_groups=5, group_size=2)
    945
    """
    placed = num_groups * group_size
    if placed > num_devices:
        return 0
    ways = factorial(placed) // factorial(group_size) ** num_groups // factorial(num_groups)
    return comb(num_devices, placed) * ways


def groupings(
    devices: tuple[int, ...], *, num_groups: int, group_size: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every way to put some devices into equal groups, each once.

    >>> list(groupings((0, 1, 2), num_groups=1, group_size=2))
    [((0, 1),), ((0, 2),), ((1, 2),)]
    """
    if num_groups == 0:
        yield ()
        return
    spare = len(devices) - num_groups * group_size
    for skip in range(spare + 1):  # the first device that is not left out leads a group
        first, others = devices[skip], devices[skip + 1 :]
        for rest in combinations(others, group_size - 1):
            left = tuple(device for device in others if device not in rest)
            for groups in groupings(left, num_groups=num_groups - 1, group_size=group_size):
                yield ((first, *rest), *groups)


def exact_grouping(weights: Weights, *, num_groups: int, group_size: int) -> np.ndarray:
    """Return the groups of smallest cost in the order of their stages, groups x members.

    Devices that do not fit into the groups are left out, those whose absence costs least.

    >>> far = np.array([[0, 9, 1], [9, 0, 8], [1, 8, 0]], dtype=float)
    >>> exact_grouping(Weights(hop=far, sync=far), num_groups=2, group_size=1).tolist()
    [[0], [2]]

    Raises:
        PlanError: there are too few devices, or too many groupings to try.
    """
    num_devices = len(weights.hop)
    count = num_groupings(num_devices=num_devices, num_groups=num_groups, group_size=group_size)
    if not 1 <= count <= LARGEST_COUNT:
        raise PlanError(
            f"exact search tries 1 to {LARGEST_COUNT} groupings: {num_devices} devices in "
            f"`num_groups` {num_groups} of `group_size` {group_size} have {count}; use `search`"
        )
    best, lowest = None, np.inf
    for groups in groupings(
        tuple(range(num_devices)), num_groups=num_groups, group_size=group_size
    ):
        members = np.array(groups)
        data_parallel = float(sync_seconds(weights, members).max())
        # A bound: the pipeline term only adds to it, and is the slow part.
        if data_parallel >= lowest:
            continue
        hops = cross_hops(weights.hop, members, symmetric=weights.is_symmetric)
        order = cheapest_path(hops)
        total = data_parallel + 2 * path_cost(hops, order)
        if total < lowest:
            best, lowest = members[order], total
    assert best is not None, weights
    return best
