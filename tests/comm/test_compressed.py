"""A transport with codecs: shorter messages to the peers that have one, all else as it is."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.collective.codec.block_quantized import Int8Codec
from jaxpipe.comm import CompressedTransport, CountingTransport, Transport, run_ranks
from jaxpipe.errors import TransportError


def exchange(transport: Transport, mine: np.ndarray | jax.Array, *, peer: int) -> np.ndarray:
    like = jax.ShapeDtypeStruct(mine.shape, mine.dtype)
    receiving = transport.receive(like, source=peer, tag=0)
    sending = transport.send(mine, to=peer, tag=0)
    got = np.asarray(receiving.wait(timeout_s=10.0))
    sending.wait(timeout_s=10.0)
    return got


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_floats_are_shortened_and_keep_their_dtype_and_shape(dtype: str):
    def work(transport: Transport) -> int:
        counted = CountingTransport(transport)
        coded = CompressedTransport(counted, {1 - transport.rank: Int8Codec()})
        mine = jnp.linspace(-1, 1, 512, dtype=dtype).reshape(2, 256)
        got = exchange(coded, mine, peer=1 - transport.rank)
        assert got.dtype == mine.dtype
        assert got.shape == mine.shape
        coarsest = 1 / 254 + float(jnp.finfo(dtype).eps)
        difference = np.abs(got.astype(np.float32) - np.asarray(mine, np.float32))
        assert np.max(difference) <= coarsest
        coded.close()
        return counted.num_bytes_sent

    assert run_ranks(2, work) == [520, 520]


def test_what_is_no_small_float_passes_as_it_is():
    def work(transport: Transport) -> None:
        coded = CompressedTransport(transport, {1 - transport.rank: Int8Codec()})
        for mine in (
            np.array([2**40 + 1]),
            np.array([True, False]),
            np.array([1 / 3]),
            np.zeros(0, np.int8),
        ):
            got = exchange(coded, mine, peer=1 - transport.rank)
            np.testing.assert_array_equal(got, mine, strict=True)
        coded.close()

    run_ranks(2, work)


def test_a_peer_without_a_codec_gets_all_as_it_is():
    def work(transport: Transport) -> None:
        codecs = {2: Int8Codec()} if transport.rank != 2 else {0: Int8Codec(), 1: Int8Codec()}
        coded = CompressedTransport(transport, codecs)
        mine = np.array([1 / 3, 2.0], np.float32)
        if transport.rank < 2:
            got = exchange(coded, mine, peer=1 - transport.rank)
            np.testing.assert_array_equal(got, mine, strict=True)
        coded.close()

    run_ranks(3, work)


def test_send_does_not_wait_for_the_computation():
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 400, lambda _, y: jnp.tanh(y @ y), x))
    slow(jnp.eye(300)).block_until_ready()

    def work(transport: Transport) -> bool:
        coded = CompressedTransport(transport, {0: Int8Codec()})
        computed = slow(jnp.eye(300))
        receiving = coded.receive(
            jax.ShapeDtypeStruct(computed.shape, computed.dtype), source=0, tag=0
        )
        sending = coded.send(computed, to=0, tag=0)
        was_early = not computed.is_ready()
        receiving.wait(timeout_s=10.0)
        assert sending.wait(timeout_s=10.0) <= time.perf_counter()
        coded.close()
        return was_early

    assert run_ranks(1, work) == [True]


def test_an_array_that_cannot_be_read_is_an_error_of_wait():
    def work(transport: Transport) -> None:
        coded = CompressedTransport(transport, {0: Int8Codec()})
        deleted = jnp.ones(3)
        deleted.delete()
        sending = coded.send(deleted, to=0, tag=4)
        with pytest.raises(TransportError, match="cannot encode 12 bytes to rank 0 with tag 4"):
            sending.wait(timeout_s=10.0)
        coded.close()

    run_ranks(1, work)
