"""All-reduce equals the sum, with the same bits on all ranks and in all runs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks
from jaxpipe.collective.tree import Edges
from jaxpipe.comm import HostOrDeviceArray, Sending, Transport, WireFormat, all_reduce, run_ranks
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.errors import TransportError
from tests.collective.strategies import sync_trees


@given(tree=sync_trees())
def test_every_rank_but_the_first_has_one_parent(tree: SyncTree):
    edges = Edges.of(tree)
    for rank in ranks(tree):
        above = edges.parent.get(rank)
        assert (above is None) == (rank == leader(tree))
        assert above is None or rank in edges.children[above]
    below = [child for children in edges.children.values() for child in children]
    assert sorted([*below, leader(tree)]) == sorted(ranks(tree))


@settings(max_examples=40, deadline=None)
@given(
    tree=sync_trees(),
    size=st.sampled_from([0, 1, 2, 7, 1_000]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
    as_jax=st.booleans(),
)
def test_equals_the_sum(tree: SyncTree, size: int, dtype: type, seed: int, *, as_jax: bool):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=size).astype(dtype) for _ in ranks(tree)]
    as_jax = as_jax and dtype == np.float32

    def work(transport: Transport) -> np.ndarray:
        mine = arrays[transport.rank]
        if as_jax:
            on_device = jnp.asarray(mine)
            return np.asarray(all_reduce(transport, on_device, tree, tag=0, timeout_s=10.0))
        return all_reduce(transport, mine, tree, tag=0, timeout_s=10.0)

    totals = run_ranks(len(arrays), work)
    assert len({total.tobytes() for total in totals}) == 1
    assert totals[0].tobytes() == run_ranks(len(arrays), work)[0].tobytes()
    assert totals[0].dtype == dtype
    epsilon = float(np.finfo(dtype).eps)
    for total, *terms in zip(*(one.tolist() for one in (totals[0], *arrays)), strict=True):
        bound = len(terms) * epsilon * math.fsum(map(abs, terms))
        assert abs(total - math.fsum(terms)) <= bound


def test_adds_in_the_order_of_the_members():
    values = [1.0, 1e16, -1e16]

    def total(tree: SyncTree) -> float:
        def work(transport: Transport) -> float:
            mine = np.array([values[transport.rank]])
            return float(all_reduce(transport, mine, tree, tag=0, timeout_s=10.0)[0])

        return run_ranks(3, work)[0]

    assert total((1, 2, 0)) == 1.0
    assert total((0, 1, 2)) == 0.0
    assert total((0, (1, 2))) == 1.0


def test_leaves_the_callers_array_alone():
    def work(transport: Transport) -> float:
        mine = np.ones(3)
        all_reduce(transport, mine, (0, 1), tag=0, timeout_s=10.0)
        return float(mine.sum())

    assert run_ranks(2, work) == [3.0, 3.0]


def test_a_rank_outside_the_tree_has_no_part():
    def work(transport: Transport) -> None:
        all_reduce(transport, np.ones(1), (1, 2), tag=0, timeout_s=10.0)

    with pytest.raises(AssertionError, match="rank 0 is not in the tree"):
        run_ranks(1, work)


def test_a_total_comes_down_a_chain_while_later_sums_go_up():
    """The last rank sends its second chunk once it has the total of the first one."""
    array, wire = np.arange(4, dtype=np.float32), WireFormat(chunk_bytes=8)
    like = jax.ShapeDtypeStruct((2,), np.float32)

    def work(transport: Transport) -> np.ndarray:
        if transport.rank < 2:
            chain = AllReduceKind.CHAIN
            return all_reduce(
                transport, array, (0, 1, 2), tag=0, timeout_s=10.0, algorithm=chain, wire=wire
            )
        totals: list[np.ndarray] = []
        for chunk in np.split(array, 2):
            sending = transport.send(chunk, to=1, tag=0)
            totals.append(np.asarray(transport.receive(like, source=1, tag=0).wait(timeout_s=5.0)))
            sending.wait(timeout_s=5.0)
        return np.concatenate(totals)

    assert [total.tolist() for total in run_ranks(3, work)] == [(3 * array).tolist()] * 3


def test_what_ends_the_sums_of_a_chain_is_raised_rather_than_that_no_total_comes():
    array, wire = np.ones(4, np.float32), WireFormat(chunk_bytes=8)

    class Cut(ForwardingTransport):
        def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
            if to == 0:
                raise TransportError("no way up")
            return super().send(array, to=to, tag=tag)

    def work(transport: Transport) -> None:
        timeout_s = 5.0
        if transport.rank == 1:
            transport, timeout_s = Cut(transport), 0.2
        chain = AllReduceKind.CHAIN
        tree = (0, 1, 2)
        all_reduce(transport, array, tree, tag=0, timeout_s=timeout_s, algorithm=chain, wire=wire)

    with pytest.raises(TransportError, match="no way up"):
        run_ranks(3, work)
