"""Sync trees follow hosts and regions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.collective import SyncTree, ranks
from jaxpipe.plan import island_tree
from jaxpipe.topo import Device

DEVICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12)


def device(region: int, host: int) -> Device:
    return Device(name="", host=f"{region}-{host}", region=f"{region}")


@given(DEVICES)
def test_a_tree_holds_each_rank_once_and_no_island_of_one(places: list[tuple[int, int]]):
    tree = island_tree({2 * i: device(*place) for i, place in enumerate(places)})
    assert sorted(ranks(tree)) == [2 * i for i in range(len(places))]
    assert all(len(island) > 1 for island in islands(tree))


@given(DEVICES)
def test_a_host_is_an_island(places: list[tuple[int, int]]):
    held = {frozenset(ranks(each)) for each in islands(island_tree(numbered(places)))}
    for place in set(places):
        mine = frozenset(i for i, other in enumerate(places) if other == place)
        assert len(mine) == 1 or mine in held


def numbered(places: list[tuple[int, int]]) -> dict[int, Device]:
    return {i: device(*place) for i, place in enumerate(places)}


def islands(tree: SyncTree) -> list[tuple[SyncTree, ...]]:
    if isinstance(tree, int):
        return []
    return [tree, *(inner for member in tree for inner in islands(member))]


@pytest.mark.parametrize(
    ("places", "tree"),
    [
        ([(0, 0)], 0),
        ([(0, 0), (0, 0)], (0, 1)),
        ([(0, 0), (1, 0), (0, 1), (1, 1)], ((0, 2), (1, 3))),
        ([(0, 0), (0, 0), (0, 1), (1, 0)], (((0, 1), 2), 3)),
    ],
)
def test_hosts_come_before_regions(places: list[tuple[int, int]], tree: SyncTree):
    assert island_tree(numbered(places)) == tree
