"""The open path against all permutations, and what is promised where it is not exact."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.search.dtfm.path import LARGEST_EXACT_PATH, cheapest_path, path_cost
from tests.search.dtfm.strategies import SEEDS


@given(st.integers(1, 6), st.booleans(), SEEDS)
def test_the_path_is_the_cheapest(size: int, symmetric: bool, seed: int):
    hops = np.random.default_rng(seed).random((size, size))
    hops = hops + hops.T if symmetric else hops
    order = cheapest_path(hops)
    lowest = min(path_cost(hops, np.array(p)) for p in permutations(range(size)))
    assert sorted(order) == list(range(size))
    assert path_cost(hops, order) == pytest.approx(lowest)
    assert not symmetric or order[0] <= order[-1]


@given(st.integers(2, 9), st.booleans(), SEEDS)
def test_the_heuristic_visits_all_and_is_never_below_the_exact(
    size: int, symmetric: bool, seed: int
):
    hops = np.random.default_rng(seed).random((size, size))
    hops = hops + hops.T if symmetric else hops
    order = cheapest_path(hops, largest_exact=0)
    assert sorted(order) == list(range(size))
    assert path_cost(hops, order) >= path_cost(hops, cheapest_path(hops)) - 1e-9


def test_the_heuristic_finds_a_line_of_many_groups():
    places = np.random.default_rng(0).permutation(5 * LARGEST_EXACT_PATH).astype(float)
    hops = np.abs(places[:, None] - places[None, :])
    assert path_cost(hops, cheapest_path(hops)) == len(places) - 1


def test_sixteen_groups_are_ordered_exactly():
    places = np.random.default_rng(0).permutation(16) ** 1.5
    hops = np.abs(places[:, None] - places[None, :])
    order = cheapest_path(hops)
    assert path_cost(hops, order) == pytest.approx(places.max() - places.min())
