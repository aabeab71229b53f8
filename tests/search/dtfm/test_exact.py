"""The exact search against the count of groupings, and against the cost of each of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.search.dtfm.cost import cross_hops, sync_seconds
from jaxpipe.search.dtfm.exact import exact_grouping, groupings, num_groupings
from jaxpipe.search.dtfm.path import cheapest_path, path_cost
from jaxpipe.search.dtfm.weights import Weights
from tests.search.dtfm.strategies import SEEDS, random_weights

SHAPES = st.sampled_from([(1, 1), (1, 4), (4, 1), (2, 2), (3, 2), (2, 3)])


def total(weights: Weights, members: np.ndarray) -> float:
    hops = cross_hops(weights.hop, members, symmetric=weights.is_symmetric)
    return sync_seconds(weights, members).max() + 2 * path_cost(hops, cheapest_path(hops))


@given(SHAPES, st.integers(0, 2))
def test_every_grouping_comes_once(shape: tuple[int, int], spare: int):
    num_groups, size = shape
    num_devices = num_groups * size + spare
    found = list(groupings(tuple(range(num_devices)), num_groups=num_groups, group_size=size))
    assert len({frozenset(map(frozenset, groups)) for groups in found}) == len(found)
    assert len(found) == num_groupings(
        num_devices=num_devices, num_groups=num_groups, group_size=size
    )


@settings(deadline=None, max_examples=30)
@given(SHAPES, st.integers(0, 1), st.booleans(), SEEDS)
def test_no_grouping_costs_less(shape: tuple[int, int], spare: int, symmetric: bool, seed: int):
    num_groups, size = shape
    weights = random_weights(num_groups * size + spare, seed=seed, symmetric=symmetric)
    devices = tuple(range(len(weights.hop)))
    best = exact_grouping(weights, num_groups=num_groups, group_size=size)
    costs = [
        total(weights, np.array(groups))
        for groups in groupings(devices, num_groups=num_groups, group_size=size)
    ]
    assert total(weights, best) == pytest.approx(min(costs))


@pytest.mark.parametrize(("num_devices", "num_groups"), [(3, 4), (24, 3)])
def test_too_few_devices_and_too_many_groupings_are_refused(num_devices: int, num_groups: int):
    weights = random_weights(num_devices, seed=0)
    with pytest.raises(PlanError, match=r"tries 1 to 100000 groupings.*have \d+; use `search`"):
        exact_grouping(weights, num_groups=num_groups, group_size=max(num_devices // num_groups, 1))
