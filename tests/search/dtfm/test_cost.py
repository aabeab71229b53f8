"""The published cost: against its formulas, its known values, and its own matching."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.search.dtfm.cost import DtfmCost, cross_hops, dtfm_cost, reach_hops
from jaxpipe.search.dtfm.weights import link_weights
from tests.oracles.dtfm_grouping import published_cost
from tests.search.dtfm.strategies import SEEDS, random_links, random_weights

GBPS = 1e9 / 8
SHAPES = st.sampled_from([(1, 1), (1, 3), (3, 1), (2, 2), (3, 2), (2, 4), (4, 3)])


def check_it_achieves_what_it_claims(
    cost: DtfmCost, latency_s: np.ndarray, bandwidth: np.ndarray, groups: np.ndarray
) -> None:
    hop = link_weights(latency_s, bandwidth, group_size=groups.shape[1]).hop
    assert sorted(cost.order) == list(range(len(groups)))
    achieved = 0.0
    for (g, h), pairs in zip(pairwise(cost.order), cost.matching, strict=True):
        sources, destinations = zip(*pairs, strict=True)
        assert sorted(sources) == sorted(groups[g])
        assert sorted(destinations) == sorted(groups[h])
        achieved += max(hop[a, b] for a, b in pairs)
    assert achieved == pytest.approx(cost.pipeline, rel=1e-12)
    assert cost.total == cost.data_parallel + 2 * cost.pipeline


@settings(deadline=None)
@given(SHAPES, st.booleans(), SEEDS)
def test_the_cost_is_the_published_one(shape: tuple[int, int], symmetric: bool, seed: int):
    num_groups, size = shape
    latency_s, bandwidth = random_links(num_groups * size + 1, seed=seed, symmetric=symmetric)
    devices = np.random.default_rng(seed).permutation(len(latency_s))[: num_groups * size]
    groups = devices.reshape(shape)
    cost = dtfm_cost(latency_s, bandwidth, groups)
    data_parallel, pipeline = published_cost(latency_s * 1e3, bandwidth / GBPS, groups.tolist())
    assert cost.data_parallel == pytest.approx(data_parallel, rel=1e-12)
    assert cost.pipeline == pytest.approx(pipeline, rel=1e-12)
    check_it_achieves_what_it_claims(cost, latency_s, bandwidth, groups)


@pytest.mark.parametrize("shape", [(2, 20), (20, 2), (1, 40)])
def test_any_number_of_groups_of_any_size(shape: tuple[int, int]):
    latency_s, bandwidth = random_links(40, seed=0)
    groups = np.random.default_rng(0).permutation(40).reshape(shape)
    cost = dtfm_cost(latency_s, bandwidth, groups)
    check_it_achieves_what_it_claims(cost, latency_s, bandwidth, groups)


@given(SHAPES, st.booleans(), SEEDS)
def test_reach_is_below_every_cross_hop(shape: tuple[int, int], symmetric: bool, seed: int):
    hop = random_weights(shape[0] * shape[1], seed=seed, symmetric=symmetric).hop
    members = np.random.default_rng(seed).permutation(len(hop)).reshape(shape)
    exact = cross_hops(hop, members, symmetric=symmetric)
    apart = ~np.eye(len(members), dtype=bool)
    assert (reach_hops(hop, members) <= exact)[apart].all()


def test_the_arguments_stay_as_they_are():
    latency_s, bandwidth = random_links(4, seed=0)
    np.fill_diagonal(bandwidth, np.inf)
    before = latency_s.copy(), bandwidth.copy()
    dtfm_cost(latency_s, bandwidth, [[0, 1], [2, 3]])
    assert (latency_s == before[0]).all()
    assert (bandwidth == before[1]).all()


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "as many devices.*`groups` are \\[\\].*at least one group"),
        ([[]], "`groups` are \\[0\\].*at least one device"),
        ([[0, 1], [2]], "`groups` are \\[1, 2\\]"),
        ([[0, 1], [1, 2]], "in one group: `groups` name device 1 twice; leave out"),
        ([[0, 3]], "name device 3, there are 3; count them from 0"),
        ([[-1, 0]], "name device -1"),
    ],
)
def test_wrong_groups_are_refused(groups: list[list[int]], words: str):
    with pytest.raises(PlanError, match=words):
        dtfm_cost(np.zeros((3, 3)), np.ones((3, 3)), groups)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth", "words"),
    [
        (np.zeros((2, 3)), np.ones((2, 3)), "devices x devices: `latency_s` is \\(2, 3\\)"),
        (np.zeros((2, 2)), np.ones((3, 3)), "`bandwidth_bytes_per_s` \\(3, 3\\); make them"),
        (-np.ones((2, 2)), np.ones((2, 2)), "not negative: `latency_s` holds -1.0"),
        (np.zeros((2, 2)), np.zeros((2, 2)), "above zero: `bandwidth_bytes_per_s` holds 0.0"),
    ],
)
def test_wrong_links_are_refused(latency_s: np.ndarray, bandwidth: np.ndarray, words: str):
    with pytest.raises(PlanError, match=words):
        dtfm_cost(latency_s, bandwidth, [[0, 1]])


def test_a_group_of_one_syncs_in_no_time():
    assert dtfm_cost(np.zeros((1, 1)), np.ones((1, 1)), [[0]]).total == 0.0
