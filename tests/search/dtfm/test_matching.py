"""Bottleneck matchings against all permutations."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.search.dtfm.matching import (
    LARGEST_SUBSET_SIZE,
    bottleneck_matching,
    bottleneck_values,
    reach,
)
from tests.search.dtfm.strategies import SEEDS


def brute_force(weights: np.ndarray) -> float:
    rows = range(len(weights))
    return min(max(weights[i, j] for i, j in zip(rows, p, strict=True)) for p in permutations(rows))


@given(st.integers(1, 6), st.integers(1, 40), SEEDS)
def test_the_matching_is_the_best_and_achieves_its_value(size: int, num_values: int, seed: int):
    weights = np.random.default_rng(seed).integers(0, num_values, (size, size)).astype(float)
    matching = bottleneck_matching(weights)
    assert matching.value == brute_force(weights)
    assert sorted(matching.columns) == list(range(size))
    assert max(weights[i, j] for i, j in enumerate(matching.columns)) == matching.value
    assert reach(weights) <= matching.value


@given(st.integers(1, LARGEST_SUBSET_SIZE + 2), st.integers(0, 5), SEEDS)
def test_many_values_at_once_are_those_of_single_matchings(size: int, batch: int, seed: int):
    weights = np.random.default_rng(seed).random((batch, size, size))
    expected = [bottleneck_matching(each).value for each in weights]
    assert bottleneck_values(weights).tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
def test_values_keep_their_type(dtype: type):
    weights = np.random.default_rng(0).integers(0, 200, (3000, 5, 5)).astype(dtype)
    values = bottleneck_values(weights)
    assert values.dtype == dtype
    assert values[-1] == brute_force(weights[-1])


def test_a_large_matching_is_perfect():
    weights = np.random.default_rng(1).random((200, 200))
    matching = bottleneck_matching(weights)
    assert sorted(matching.columns) == list(range(200))
    assert weights[np.arange(200), matching.columns].max() == matching.value
