"""What sharing out costs, against the steps that the ranks carry out, and the textbook forms."""

from collections import defaultdict
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import Act, AllReduceKind, SyncTree, ranks, steps_of
from jaxpipe.collective.sync_tree import flat, halves, pruned
from jaxpipe.plan.cost import (
    Links,
    halving_s,
    shares_s,
    uniform_links,
)
from tests.comm.trees import sync_trees
from tests.plan.cost.test_collective import random_links

SIZE = 2**12 * 3**4


@settings(max_examples=40, deadline=None)
@given(tree=sync_trees(most_ranks=5), seed=st.integers(0, 2**32 - 1))
def test_counts_what_the_steps_of_the_ranks_take(tree: SyncTree, seed: int):
    links = random_links(len(ranks(tree)), seed=seed)
    expected = level_by_level(links, pruned(tree))
    assert shares_s(links, tree, num_bytes=SIZE) == pytest.approx(expected, rel=1e-3)


def level_by_level(links: Links, tree: SyncTree) -> float:
    """Let the messages between the members of each island follow those inside of them."""
    up: defaultdict[SyncTree, list[tuple[int, int, int]]] = defaultdict(list)
    down: defaultdict[SyncTree, list[tuple[int, int, int]]] = defaultdict(list)
    for rank in ranks(tree):
        steps = steps_of(AllReduceKind.HIERARCHICAL, tree, rank, size=SIZE, message_size=SIZE)
        acts = [step.act for step in steps]
        turn = max(
            index
            for index, step in enumerate(steps)
            if step.act is Act.SETTLE and Act.TAKE not in acts[:index]
        )
        for index, step in enumerate(steps):
            if step.act is Act.SEND:
                message = (rank, step.peer, step.part.size)
                (up if index < turn else down)[island_of(tree, rank, step.peer)].append(message)

    def seconds(island: SyncTree) -> float:
        if isinstance(island, int):
            return 0.0
        inside = max(seconds(member) for member in island)
        return inside + best_order_s(links, up[island]) + best_order_s(links, down[island])

    return seconds(tree)


def island_of(tree: SyncTree, one: int, other: int) -> SyncTree:
    assert not isinstance(tree, int)
    for member in tree:
        if {one, other} <= set(ranks(member)):
            return island_of(member, one, other)
    return tree


def best_order_s(links: Links, messages: list[tuple[int, int, int]]) -> float:
    """Return when the last port is done if each of them takes its messages in the best order."""
    ports: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for source, destination, size in messages:
        wire_s = links.wire_s(source, destination, num_bytes=size)
        message = (float(links.latency_s[source, destination]), wire_s)
        ports["out", source].append(message)
        ports["in", destination].append(message)
    return max((best_of(port) for port in ports.values()), default=0.0)


def best_of(messages: list[tuple[float, float]]) -> float:
    """Return the least time of all orders: of each set of messages, whichever comes last."""
    end_s = {0: 0.0}
    for taken in range(1, 1 << len(messages)):
        end_s[taken] = min(
            max(end_s[taken & ~(1 << last)], latency_s) + wire_s
            for last, (latency_s, wire_s) in enumerate(messages)
            if taken >> last & 1
        )
    return end_s[(1 << len(messages)) - 1]


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_equal_links_give_the_closed_forms(p: int):
    a, b, n = 0.5, 0.25, 48.0
    links = uniform_links(p, latency_s=a, bandwidth_bytes_per_s=1 / b)
    flat_s = shares_s(links, flat(range(p)), num_bytes=n)
    expected = {1: 0.0, 2: a + n * b}.get(p, 2 * (a + n * b * (p - 1) / p))
    assert flat_s == pytest.approx(expected)
    if p in (2, 8):
        k = log2(p)
        expected = (2 * k - 1) * a + 2 * n * b * (p - 1) / p
        assert halving_s(links, num_bytes=n) == pytest.approx(expected)


@pytest.mark.parametrize("q", [1, 2, 5])
def test_two_equal_islands_give_the_closed_form(q: int):
    a, b, n = 0.5, 0.25, 40.0
    links = uniform_links(2 * q, latency_s=a, bandwidth_bytes_per_s=1 / b)
    tree = (flat(range(q)), flat(range(q, 2 * q)))
    inside = 2 * (a + n * b * (q - 1) / q) if q > 1 else 0.0
    expected = inside + a + n * b / q
    assert shares_s(links, tree, num_bytes=n) == pytest.approx(expected)


def test_halving_is_sharing_along_a_tree_of_halves():
    links = random_links(6, seed=1)
    expected = shares_s(links, halves(range(6)), num_bytes=9)
    assert halving_s(links, num_bytes=9) == expected
