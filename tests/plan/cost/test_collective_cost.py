"""Prices of collectives against oracles message by message, textbook forms and lower bounds."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import (
    AllReduceKind,
    Collective,
    SyncTree,
    all_gather_transfers,
    all_reduce_transfers,
    all_to_all_transfers,
    broadcast_transfers,
    ranks,
    reduce_scatter_transfers,
    reduce_transfers,
)
from jaxpipe.collective.sync_tree import chain, flat
from jaxpipe.collective.transfers import in_sequence
from jaxpipe.plan.cost import Links, ring_s, transfers_s, tree_s, uniform_links
from jaxpipe.plan.cost.collective_cost import all_reduce_s
from tests.collective.strategies import sync_trees
from tests.oracles import collective_seconds as message_by_message

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)


def random_links(size: int, *, seed: int) -> Links:
    random = np.random.default_rng(seed)
    latency_s = random.integers(0, 9, (size, size)).astype(float)
    np.fill_diagonal(latency_s, 0.0)  # a device has what it sends to itself
    return Links(
        latency_s=latency_s,
        seconds_per_byte=random.integers(1, 9, (size, size)).astype(float),
    )


@st.composite
def trees(draw: st.DrawFn, members: tuple[int, ...]) -> SyncTree:
    if len(members) == 1:
        return members[0]
    cuts = draw(st.sets(st.integers(1, len(members) - 1), min_size=1))
    edges = [0, *sorted(cuts), len(members)]
    pieces = [members[a:b] for a, b in pairwise(edges)]
    return tuple(draw(trees(piece)) for piece in pieces)


KINDS = [kind for kind in AllReduceKind if not kind.facts.is_native]


@given(SIZES, SEEDS, st.integers(0, 100))
def test_a_ring_counts_what_its_rounds_take(size: int, seed: int, num_bytes: int):
    links = random_links(size, seed=seed)
    expected = message_by_message.ring(links, num_bytes=num_bytes)
    assert ring_s(links, num_bytes=num_bytes) == pytest.approx(expected)


@given(st.data(), SIZES, SEEDS)
def test_a_sync_tree_counts_what_its_edges_take(data: st.DataObject, size: int, seed: int):
    links = random_links(size, seed=seed)
    tree = data.draw(trees(tuple(np.random.default_rng(seed).permutation(size).tolist())))
    expected = message_by_message.tree(links, tree, num_bytes=3.0)
    assert tree_s(links, tree, num_bytes=3.0) == pytest.approx(expected)


@settings(deadline=None)
@given(st.sampled_from(KINDS), sync_trees(), SEEDS, st.sampled_from([2.0, 50.0]))
def test_no_price_is_below_its_busiest_port_and_its_longest_path(
    kind: AllReduceKind, tree: SyncTree, seed: int, chunk_bytes: float
):
    links = random_links(len(ranks(tree)), seed=seed)
    collective = all_reduce_transfers(kind, tree, num_bytes=12.0, chunk_bytes=chunk_bytes)
    took_s = transfers_s(links, collective)
    assert took_s >= busiest_port_s(links, collective) - 1e-9
    assert took_s >= longest_path_s(links, collective) - 1e-9
    assert took_s <= one_by_one_s(links, collective) + 1e-9


def busiest_port_s(links: Links, collective: Collective) -> float:
    busy_s: defaultdict[tuple[str, int], float] = defaultdict(float)
    for each in collective:
        wire_s = links.wire_s(each.source, each.destination, num_bytes=each.num_bytes)
        busy_s["out", each.source] += wire_s
        busy_s["in", each.destination] += wire_s
    return max(busy_s.values(), default=0.0)


def longest_path_s(links: Links, collective: Collective) -> float:
    ends_s: list[float] = []
    for each in collective:
        ready_s = max((ends_s[need] for need in each.after), default=0.0)
        message_s = links.message_s(each.source, each.destination, num_bytes=each.num_bytes)
        ends_s.append(ready_s + message_s)
    return max(ends_s, default=0.0)


def one_by_one_s(links: Links, collective: Collective) -> float:
    return sum(
        links.message_s(each.source, each.destination, num_bytes=each.num_bytes)
        for each in collective
    )


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_equal_links_give_the_textbook_forms(p: int):
    a, b, n = 0.5, 0.25, 48.0
    links = uniform_links(p, latency_s=a, bandwidth_bytes_per_s=1 / b)
    order, nested = tuple(range(p)), chain(range(p))
    forms = {
        AllReduceKind.RING: 2 * (p - 1) * (a + n * b / p),
        AllReduceKind.CENTRAL: 2 * (a + (p - 1) * n * b),
        AllReduceKind.CHAIN: 2 * (p - 1) * (a + n * b),
        AllReduceKind.SHARDED: a + n * b if p == 2 else 2 * (a + n * b * (p - 1) / p),
    }
    if p in (2, 8):
        forms[AllReduceKind.HALVING] = (2 * log2(p) - 1) * a + 2 * n * b * (p - 1) / p
    for kind, expected in forms.items():
        collective = all_reduce_transfers(kind, order, num_bytes=n)
        assert transfers_s(links, collective) == pytest.approx(expected if p > 1 else 0.0), kind
    there_and_back = in_sequence(
        reduce_transfers(nested, num_bytes=n, num_chunks=3),
        broadcast_transfers(nested, num_bytes=n, num_chunks=3),
    )
    expected = 2 * (p - 1) * (a + n * b / 3) + 2 * 2 * n * b / 3 if p > 1 else 0.0
    assert transfers_s(links, there_and_back) == pytest.approx(expected)


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_equal_links_give_the_textbook_forms_of_the_halves_of_an_all_reduce(p: int):
    a, b, n = 0.5, 0.25, 48.0
    links = uniform_links(p, latency_s=a, bandwidth_bytes_per_s=1 / b)
    order = tuple(range(p))
    each = [[int(n) // p] * p] * p
    forms = [
        (reduce_scatter_transfers(order, num_bytes=n), (p - 1) * (a + n * b / p)),
        (all_gather_transfers(order, num_bytes=n), (p - 1) * (a + n * b / p)),
        (all_to_all_transfers(order, each, message_size=100), a + (p - 1) * n * b / p),
        (broadcast_transfers(flat(order), num_bytes=n), a + (p - 1) * n * b),
    ]
    for collective, expected in forms:
        assert transfers_s(links, collective) == pytest.approx(expected if p > 1 else 0.0)


@pytest.mark.parametrize("q", [1, 2, 5])
def test_two_equal_islands_give_the_closed_form(q: int):
    a, b, n = 0.5, 0.25, 40.0
    links = uniform_links(2 * q, latency_s=a, bandwidth_bytes_per_s=1 / b)
    tree = (flat(range(q)), flat(range(q, 2 * q)))
    # The two of a pair swap what they hold, at any level that is the last one.
    inside = 2 * (a + n * b * (q - 1) / q) if q > 1 else 0.0
    collective = all_reduce_transfers(AllReduceKind.HIERARCHICAL, tree, num_bytes=n)
    assert transfers_s(links, collective) == pytest.approx(inside + a + n * b / q)


@given(st.data(), SIZES)
def test_on_equal_links_the_closed_form_of_a_tree_is_the_price_of_its_messages(
    data: st.DataObject, size: int
):
    links = uniform_links(size, latency_s=3.0, bandwidth_bytes_per_s=2.0)
    tree = data.draw(trees(tuple(range(size))))
    collective = all_reduce_transfers(AllReduceKind.TREE, tree, num_bytes=4.0)
    assert transfers_s(links, collective) <= tree_s(links, tree, num_bytes=4.0) + 1e-9
    assert tree_s(links, flat(range(size)), num_bytes=4.0) == pytest.approx(
        transfers_s(links, all_reduce_transfers(AllReduceKind.CENTRAL, tree, num_bytes=4.0))
    )


@given(SIZES, SEEDS)
def test_a_nested_tree_is_a_chain(size: int, seed: int):
    links = random_links(size, seed=seed)
    collective = all_reduce_transfers(AllReduceKind.CHAIN, tuple(range(size)), num_bytes=5.0)
    assert tree_s(links, chain(range(size)), num_bytes=5.0) == pytest.approx(
        transfers_s(links, collective)
    )


@pytest.mark.parametrize("kind", [AllReduceKind.SHARDED, AllReduceKind.HIERARCHICAL])
@pytest.mark.parametrize("tree", [(0, 1), (0, 1, 2, 3), ((0, 1), (2, 3)), ((0, 1, 2), (3, 4, 5))])
def test_on_equal_links_shares_take_as_long_as_their_messages(kind: AllReduceKind, tree: SyncTree):
    links = uniform_links(len(ranks(tree)), latency_s=1.0, bandwidth_bytes_per_s=1.0)
    exact_s = transfers_s(links, all_reduce_transfers(kind, tree, num_bytes=720.0))
    # The closed form lets the last bytes of one direction wait for those of the other.
    assert exact_s <= all_reduce_s(kind, links, tree, num_bytes=720.0) <= exact_s + 1.0


@given(st.integers(2, 9), SEEDS)
def test_messages_through_faster_ports_go_side_by_side(size: int, seed: int):
    links = replace(random_links(size, seed=seed), port_s_per_byte=np.zeros((size, size)))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    share_s = max(links.message_s(*pair, num_bytes=6.0) for pair in pairs)
    shares_s = all_reduce_s(AllReduceKind.SHARDED, links, flat(range(size)), num_bytes=6.0 * size)
    assert shares_s == pytest.approx(2 * share_s)
    up_s = max(links.message_s(a, b, num_bytes=6.0) for a, b in pairs if b == 0)
    down_s = max(links.message_s(a, b, num_bytes=6.0) for a, b in pairs if a == 0)
    assert tree_s(links, flat(range(size)), num_bytes=6.0) == pytest.approx(up_s + down_s)


def test_kinds_without_shares_are_priced_as_trees_and_rings():
    links = random_links(5, seed=1)
    tree = ((0, 1), (2, 3, 4))
    for kind in (AllReduceKind.TREE, AllReduceKind.CENTRAL, AllReduceKind.CHAIN):
        found = all_reduce_s(kind, links, tree, num_bytes=9.0, chunk_bytes=2.0)
        assert found == tree_s(links, tree, num_bytes=9.0, chunk_bytes=2.0)
    assert all_reduce_s(AllReduceKind.RING, links, tree, num_bytes=9.0) == ring_s(
        links, num_bytes=9.0
    )
    assert all_reduce_s(AllReduceKind.RING, links, 3, num_bytes=9.0) == 0.0
