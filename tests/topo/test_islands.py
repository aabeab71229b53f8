"""Islands: the ones that were put there are found, whatever the numbering."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo import Cluster, load
from jaxpipe.topo.islands import Island, find_islands, flatten, message_seconds
from tests.topo.strategies import clusters


def distances(cluster: Cluster) -> np.ndarray:
    return message_seconds(cluster.latency_s, cluster.bandwidth_bytes_per_s)


def islands_of(name: str) -> tuple[Island, ...]:
    return find_islands(distances(load(name)))


@pytest.mark.parametrize("num", [1, 2, 5])
def test_like_links_make_no_islands(num: int):
    assert islands_of(f"homogeneous:hosts={num}") == tuple(range(num))


def test_regions_are_islands():
    ohio, virginia = tuple(range(32)), tuple(range(32, 64))
    assert islands_of("case3-universities") == (ohio, virginia)


def test_hosts_inside_near_regions_nest():
    assert find_islands(distances(load("fluidstack-3region:hosts=2"))) == (
        (((0, 1), (2, 3)), ((4, 5), (6, 7))),
        ((8, 9), (10, 11)),
    )


@given(data=st.data(), sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_planted_islands_are_found_under_any_numbering(data: st.DataObject, sizes: list[int]):
    planted = np.repeat(np.arange(len(sizes)), sizes)
    planted = planted[data.draw(st.permutations(range(len(planted))))]
    inside = planted[:, None] == planted[None, :]
    distance = np.where(inside, 1.0, 10.0)
    found = find_islands(distance)
    expected = {frozenset(np.flatnonzero(planted == i).tolist()) for i in range(len(sizes))}
    if max(sizes) > 1:
        assert {frozenset(flatten(island)) for island in found} == expected
    else:
        assert found == tuple(range(len(sizes)))


@given(cluster=clusters())
def test_every_device_is_on_one_island(cluster: Cluster):
    found = find_islands(distances(cluster))
    assert sorted(flatten(found)) == list(range(len(cluster)))


def test_distance_is_that_of_the_slower_direction():
    latency = np.array([[0, 0.5], [0.25, 0]])
    bandwidth = np.array([[np.inf, 100.0], [50.0, np.inf]])
    seconds = message_seconds(latency, bandwidth, num_bytes=100)
    assert seconds.tolist() == [[0, 2.25], [2.25, 0]]


@pytest.mark.parametrize(
    ("distance", "gap", "words"),
    [
        (np.zeros((2, 2)), 1.0, "`gap` must be above 1, not 1"),
        (np.array([[0, 1], [2, 0]]), 2.0, "`distance` must be symmetric"),
        (np.zeros((2, 3)), 2.0, r"its shape is \(2, 3\)"),
    ],
)
def test_mistakes_are_refused(distance: np.ndarray, gap: float, words: str):
    with pytest.raises(ValueError, match=words):
        find_islands(distance, gap=gap)
