"""The closed forms against all-reduces message by message, and against each other."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.collective import SyncTree
from jaxpipe.plan.cost import (
    Links,
    central_s,
    chain_s,
    hierarchical_s,
    ring_s,
    sharded_s,
    tree_s,
    uniform_links,
)
from tests.oracles import collective_seconds as step_by_step

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)


def random_links(size: int, *, seed: int) -> Links:
    random = np.random.default_rng(seed)
    return Links(
        latency_s=random.integers(0, 9, (size, size)).astype(float),
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


@pytest.mark.parametrize("name", ["ring", "tree", "central", "sharded"])
@given(SIZES, SEEDS, st.integers(0, 100))
def test_a_closed_form_counts_what_the_steps_take(name: str, size: int, seed: int, num_bytes: int):
    closed = {"ring": ring_s, "tree": tree_s, "central": central_s, "sharded": sharded_s}[name]
    links = random_links(size, seed=seed)
    expected = getattr(step_by_step, name)(links, num_bytes=num_bytes)
    assert closed(links, num_bytes=num_bytes) == pytest.approx(expected)


@given(SIZES, SEEDS, st.integers(1, 5))
def test_a_chain_counts_what_its_chunks_take(size: int, seed: int, num_chunks: int):
    links = random_links(size, seed=seed)
    expected = step_by_step.chain(links, num_bytes=12.0, num_chunks=num_chunks)
    assert chain_s(links, num_bytes=12.0, num_chunks=num_chunks) == pytest.approx(expected)


@given(st.data(), SIZES, SEEDS)
def test_a_sync_tree_counts_what_its_edges_take(data: st.DataObject, size: int, seed: int):
    links = random_links(size, seed=seed)
    tree = data.draw(trees(tuple(np.random.default_rng(seed).permutation(size).tolist())))
    expected = step_by_step.hierarchical(links, tree, num_bytes=3.0)
    assert hierarchical_s(links, tree, num_bytes=3.0) == pytest.approx(expected)


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_equal_links_give_the_textbook_forms(p: int):
    a, b, n = 0.5, 0.25, 12.0
    links = uniform_links(p, latency_s=a, bandwidth_bytes_per_s=1 / b)
    forms: list[tuple[Callable[..., float], float]] = [
        (partial(chain_s, num_chunks=3), 2 * (p - 1) * (a + n * b / 3) + 2 * 2 * n * b / 3),
        (ring_s, 2 * (p - 1) * (a + n * b / p)),
        (tree_s, 2 * ceil(log2(p)) * (a + n * b)),
        (central_s, 2 * (a + (p - 1) * n * b)),
        (sharded_s, 2 * (p - 1) * (a + n * b / p)),
    ]
    for form, expected in forms:
        assert form(links, num_bytes=n) == pytest.approx(expected if p > 1 else 0.0)


@given(SIZES, SEEDS)
def test_a_nested_tree_is_a_chain(size: int, seed: int):
    links = random_links(size, seed=seed)
    tree: SyncTree = size - 1
    for member in reversed(range(size - 1)):
        tree = (member, tree)
    expected = chain_s(links, num_bytes=5)
    assert hierarchical_s(links, tree, num_bytes=5) == pytest.approx(expected)


@given(SIZES)
def test_a_flat_tree_is_a_central_server(size: int):
    links = uniform_links(size, latency_s=3.0, bandwidth_bytes_per_s=2.0)
    tree = tuple(range(size)) if size > 1 else 0
    assert hierarchical_s(links, tree, num_bytes=4) == pytest.approx(central_s(links, num_bytes=4))
