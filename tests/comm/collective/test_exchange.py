"""All-gather, reduce-scatter, broadcast and all-to-all against NumPy, whatever the sizes."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import SyncTree, leader, ranks
from jaxpipe.collective.shards import ElementRange
from jaxpipe.comm import (
    CountingTransport,
    Transport,
    all_gather,
    all_to_all,
    broadcast,
    reduce_scatter,
    run_ranks,
)

ORDERS = st.integers(1, 5).flatmap(lambda size: st.permutations(range(size)))
CHUNKS = st.integers(1, 64)
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=30, deadline=None)
@given(
    order=ORDERS,
    size=st.integers(0, 40),
    chunk_bytes=CHUNKS,
)
def test_the_shares_are_the_whole_again(order: list[int], size: int, chunk_bytes: int) -> None:
    whole = np.random.default_rng(0).normal(size=size).astype(np.float32)

    def work(transport: Transport) -> tuple[np.ndarray, int]:
        counted = CountingTransport(transport)
        own = ElementRange(0, size).cut(len(order))[order.index(transport.rank)]
        gather = partial(all_gather, counted, whole[own.start : own.stop], order, size=size)
        first, second = (gather(tag=0, timeout_s=10.0, chunk_bytes=chunk_bytes) for _ in range(2))
        np.testing.assert_array_equal(first, second, strict=True)
        return first, counted.num_bytes_sent

    shares = ElementRange(0, size).cut(len(order))
    for rank, (gathered, num_bytes_sent) in enumerate(run_ranks(len(order), work)):
        np.testing.assert_array_equal(gathered, whole, strict=True)
        of_next = shares[(order.index(rank) + 1) % len(order)]
        assert num_bytes_sent == 2 * 4 * (size - of_next.size)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_a_jax_array_is_gathered_bit_by_bit(dtype: jnp.dtype) -> None:
    shares = [jnp.array(values, dtype) for values in ([-0.0], [jnp.nan, 1.5], [jnp.inf, 3e-8])]

    def work(transport: Transport) -> bytes:
        own = shares[transport.rank]
        return all_gather(transport, own, (0, 1, 2), size=5, tag=0, timeout_s=10.0).tobytes()

    expected = b"".join(np.asarray(share).tobytes() for share in shares)
    assert run_ranks(3, work) == [expected] * 3


@settings(max_examples=40, deadline=None)
@given(order=ORDERS, size=st.integers(0, 40), chunk_bytes=CHUNKS, seed=SEEDS)
def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce(
    order: list[int], size: int, chunk_bytes: int, seed: int
) -> None:
    arrays = np.random.default_rng(seed).normal(size=(len(order), size))
    arrays.flags.writeable = False

    def work(transport: Transport) -> tuple[np.ndarray, np.ndarray]:
        mine = arrays[transport.rank]
        part = reduce_scatter(
            transport, mine, order, tag=0, timeout_s=10.0, chunk_bytes=chunk_bytes
        )
        whole = all_gather(transport, part, order, size=size, tag=0, timeout_s=10.0)
        return part, whole

    parts, wholes = zip(*run_ranks(len(order), work), strict=True)
    shares = ElementRange(0, size).cut(len(order))
    for share, rank in zip(shares, order, strict=True):
        np.testing.assert_array_equal(parts[rank], wholes[0][share.start : share.stop])
        assert parts[rank].shape == (share.size,)
    assert len({whole.tobytes() for whole in wholes}) == 1
    np.testing.assert_allclose(wholes[0], arrays.sum(axis=0), rtol=1e-12, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(order=ORDERS, chunk_bytes=CHUNKS, seed=SEEDS, most=st.integers(0, 9))
def test_an_all_to_all_moves_each_block_once(
    order: list[int], chunk_bytes: int, seed: int, most: int
) -> None:
    rng, num_ranks = np.random.default_rng(seed), len(order)
    sizes = rng.integers(0, most, (num_ranks, num_ranks), endpoint=True)
    blocks = [[rng.normal(size=size).astype(np.float32) for size in row] for row in sizes]

    def work(transport: Transport) -> np.ndarray:
        mine = order.index(transport.rank)
        return all_to_all(
            transport,
            np.concatenate(blocks[mine]),
            order,
            sizes=sizes.tolist(),
            tag=0,
            timeout_s=10.0,
            chunk_bytes=chunk_bytes,
        )

    results = run_ranks(num_ranks, work)
    for mine, rank in enumerate(order):
        expected = np.concatenate([row[mine] for row in blocks])
        np.testing.assert_array_equal(results[rank], expected, strict=True)


@pytest.mark.parametrize("size", [0, 1, 3, 10])
def test_an_all_to_all_cuts_evenly_by_default(size: int) -> None:
    def work(transport: Transport) -> np.ndarray:
        mine = np.arange(size) + 100 * transport.rank
        return all_to_all(transport, mine, (2, 0, 1, 3), tag=0, timeout_s=10.0)

    parts = ElementRange(0, size).cut(4)
    for rank, result in enumerate(run_ranks(4, work)):
        part = parts[(2, 0, 1, 3).index(rank)]
        expected = [np.arange(part.start, part.stop) + 100 * other for other in (2, 0, 1, 3)]
        np.testing.assert_array_equal(result, np.concatenate(expected))


@pytest.mark.parametrize("tree", [0, (1, 0), ((2, 0), (3, (1, 4)))])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
def test_a_broadcast_leaves_the_callers_array_alone(tree: SyncTree, shape: tuple[int, ...]) -> None:
    def work(transport: Transport) -> tuple[np.ndarray, np.ndarray]:
        mine = np.full(shape, transport.rank, np.int16)
        mine.flags.writeable = False
        got = broadcast(transport, mine, tree, tag=0, timeout_s=10.0, chunk_bytes=5)
        got += 1  # it is the caller's
        return mine, got

    for rank, (mine, got) in enumerate(run_ranks(len(ranks(tree)), work)):
        np.testing.assert_array_equal(mine, np.full(shape, rank, np.int16), strict=True)
        np.testing.assert_array_equal(got, np.full(shape, leader(tree) + 1, np.int16), strict=True)
