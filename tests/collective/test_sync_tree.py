"""Sync trees of thousands of ranks, of any shape: none is walked by recursion."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from jaxpipe.collective import AllReduceKind, SyncTree, all_reduce_transfers, leader, ranks
from jaxpipe.collective.sync_tree import chain, chained, flat, folded, halves, pruned, to_leaders
from tests.collective.strategies import sync_trees

NUM_RANKS = 3000
ORDER = tuple(range(NUM_RANKS))


def to_the_left(order: tuple[int, ...]) -> SyncTree:
    tree: SyncTree = order[0]
    for rank in order[1:]:
        tree = (tree, rank)
    return tree


@pytest.mark.parametrize("shape", [flat, chain, halves, to_the_left])
def test_a_tree_may_be_as_deep_as_it_has_ranks(shape: Callable[[tuple[int, ...]], SyncTree]):
    tree = shape(ORDER)
    assert ranks(tree) == ranks(pruned(tree)) == ranks(chained(tree)) == ORDER
    assert leader(tree) == 0
    edges = to_leaders(tree)
    # Each rank but the leader sends once, after all that it receives.
    assert [child for child, _ in edges] == list(dict(edges))
    assert sorted(child for child, _ in edges) == list(ORDER[1:])
    sent = {child: position for position, (child, _) in enumerate(edges)}
    assert all(sent.get(to, NUM_RANKS) > position for position, (_, to) in enumerate(edges))


@pytest.mark.parametrize("kind", [AllReduceKind.CHAIN, AllReduceKind.TREE])
def test_an_all_reduce_of_thousands_of_ranks_has_its_messages(kind: AllReduceKind):
    moved = all_reduce_transfers(kind, ORDER, num_bytes=1.0)
    assert len(moved) == 2 * (NUM_RANKS - 1)


@settings(max_examples=50, deadline=None)
@given(sync_trees())
def test_a_fold_visits_members_in_order_and_before_their_island(tree: SyncTree):
    assert folded(tree, at_rank=lambda rank: rank, at_island=tuple) == tree
