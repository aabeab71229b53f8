"""What the search starts from: islands, their orders, tiles, and what is bred from them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.search.dtfm.nested_islands import find_islands, packed_order, shuffled
from jaxpipe.search.dtfm.network import prepare
from jaxpipe.search.dtfm.offspring import mix, offspring, shake
from jaxpipe.search.dtfm.tiles import tilings
from tests.search.dtfm.strategies import SEEDS, random_weights

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5))


def regions(*sizes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the region of each device, shuffled, and distances of 1 inside and 5 across."""
    region = np.random.default_rng(seed).permutation(np.repeat(range(len(sizes)), sizes))
    return region, np.where(region[:, None] == region, 1.0, 5.0)


@given(st.integers(1, 12), st.integers(1, 13), SEEDS)
def test_an_order_holds_every_device_once(num_devices: int, size: int, seed: int):
    islands = find_islands(random_weights(num_devices, seed=seed, symmetric=False).hop)
    mixed = shuffled(islands, random=np.random.default_rng(seed))
    for each in (islands, mixed):
        assert sorted(packed_order(each, size=size)) == list(range(num_devices))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 4), SEEDS)
def test_islands_of_whole_blocks_are_not_broken(counts: list[int], size: int, seed: int):
    region, distance = regions(*(1 + count for count in counts), seed=seed)
    order = region[packed_order(find_islands(distance), size=size)]
    whole = sum(count // size for count in np.bincount(region))
    alike = [len(set(order[i * size : (i + 1) * size])) == 1 for i in range(whole)]
    assert all(alike)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 2), SEEDS)
def test_starts_and_children_place_no_device_twice(shape: tuple[int, int], spare: int, seed: int):
    num_groups, size = shape
    network = prepare(random_weights(num_groups * size + spare, seed=seed))
    starts = list(tilings(network, num_groups=num_groups, group_size=size))
    random = np.random.default_rng(seed)
    children = [offspring(network, starts, random=random) for _ in range(5)]
    children += [mix(starts[0], starts[-1], random=random)]
    children += [shake(starts[0], num_devices=len(network), random=random)]
    for members in (*starts, *children):
        assert members.shape == shape
        assert len(np.unique(members)) == members.size
    assert len({np.sort(members, axis=1).tobytes() for members in starts}) == len(starts)
