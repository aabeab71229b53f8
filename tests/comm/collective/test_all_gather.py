"""Whoever brings a share has the whole afterwards, with the bits that were brought."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective.shards import Part
from jaxpipe.comm import CountingTransport, Transport, all_gather, run_ranks


@settings(max_examples=30, deadline=None)
@given(
    order=st.integers(1, 5).flatmap(lambda size: st.permutations(range(size))),
    size=st.integers(0, 40),
    chunk_bytes=st.integers(1, 64),
)
def test_the_shares_are_the_whole_again(order: list[int], size: int, chunk_bytes: int) -> None:
    whole = np.random.default_rng(0).normal(size=size).astype(np.float32)

    def work(transport: Transport) -> tuple[np.ndarray, int]:
        counted = CountingTransport(transport)
        own = Part(0, size).cut(len(order))[order.index(transport.rank)]
        gather = partial(all_gather, counted, whole[own.start : own.stop], order, size=size)
        first, second = (gather(tag=0, timeout_s=10.0, chunk_bytes=chunk_bytes) for _ in range(2))
        np.testing.assert_array_equal(first, second, strict=True)
        return first, counted.num_bytes_sent

    shares = Part(0, size).cut(len(order))
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
