"""A buffer is used again when nobody refers to it, and never before."""

import gc
from threading import Thread

import jax
import numpy as np
import pytest

from jaxpipe.collective.codec.aligned import ALIGNMENT_BYTES
from jaxpipe.comm.mpi.buffer_pool import BufferPool


@pytest.mark.parametrize("num_bytes", [1, 2**16 - 1, 2**16, 2**20 + 1])
def test_buffers_are_aligned_and_may_be_written(num_bytes: int):
    pool = BufferPool()
    for _ in range(3):
        buffer = pool.take(num_bytes)
        assert (buffer.shape, buffer.dtype) == ((num_bytes,), np.uint8)
        assert buffer.ctypes.data % ALIGNMENT_BYTES == 0
        buffer[...] = 1


def test_no_bytes_are_a_buffer_too():
    assert BufferPool().take(0).shape == (0,)


@pytest.mark.parametrize("num_bytes", [128, 2**20])
def test_what_is_referred_to_is_not_handed_out(num_bytes: int):
    pool = BufferPool()
    first = pool.take(num_bytes)
    first[...] = 1
    view = first.view(np.float32).reshape(2, -1)[1:]
    address = first.ctypes.data
    del first
    second = pool.take(num_bytes)
    assert second.ctypes.data != address
    second[...] = 2
    assert view.tobytes() == b"\1" * (num_bytes // 2)


def test_a_jax_array_keeps_its_memory_until_it_is_gone():
    pool = BufferPool()
    buffer = pool.take(2**20)
    buffer[...] = 7
    address = buffer.ctypes.data
    array = jax.device_put(buffer.view(np.uint32))
    assert array.unsafe_buffer_pointer() == address
    del buffer
    others = [pool.take(2**20) for _ in range(3)]
    assert all(other.ctypes.data != address for other in others)
    for other in others:
        other[...] = 0
    assert np.all(np.asarray(array) == 0x07070707)
    array.delete()
    del array
    gc.collect()
    assert pool.take(2**20).ctypes.data == address


def test_no_more_is_kept_than_allowed():
    pool = BufferPool(max_idle_bytes=2**20)
    buffers = [pool.take(2**19) for _ in range(4)]
    addresses = {buffer.ctypes.data for buffer in buffers}
    more = [
        buffer.copy() for buffer in buffers
    ]  # so that freed memory does not come back by chance
    del buffers
    again = [pool.take(2**19) for _ in range(2)]
    assert {buffer.ctypes.data for buffer in again} <= addresses
    assert len(more) == 4
    assert pool.take(2**21).size == 2**21


def test_threads_never_share_a_buffer():
    pool, clashes = BufferPool(), []

    def work(number: int) -> None:
        for _ in range(200):
            buffer = pool.take(2**17)
            buffer[...] = number
            if not np.all(buffer == number):
                clashes.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
