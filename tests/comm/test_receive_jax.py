"""An array that is made before its message has come holds what the message brings."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from numpy.typing import DTypeLike

from jaxpipe.comm import (
    HostOrDeviceArray,
    LocalTransport,
    LocalWorld,
    Receiving,
    Sending,
    receive_jax,
)
from jaxpipe.comm.mpi.buffer_pool import BufferPool


@dataclass(frozen=True, slots=True)
class _Filling:
    receiving: Receiving
    memory: np.ndarray

    def wait(self, *, timeout_s: float) -> np.ndarray:
        self.memory[...] = self.receiving.wait(timeout_s=timeout_s)
        return self.memory


@dataclass(frozen=True, slots=True)
class _Early:
    """A transport that tells into which memory it receives."""

    inner: LocalTransport
    pool: BufferPool = field(default_factory=BufferPool)
    first_byte: int = 0

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def num_ranks(self) -> int:
        return self.inner.num_ranks

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        return self.inner.send(array, to=to, tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> _Filling:
        buffer = self.pool.take(like.size * like.dtype.itemsize + 64)
        memory = buffer[self.first_byte :][: buffer.size - 64].view(like.dtype).reshape(like.shape)
        memory[...] = 0
        return _Filling(self.inner.receive(like, source=source, tag=tag), memory)

    def close(self, *, error: BaseException | None = None) -> None:
        self.inner.close(error=error)


@pytest.mark.parametrize("dtype", [np.float32, jax.numpy.bfloat16, np.float64])
@pytest.mark.parametrize("shape", [(0,), (7,), (2**18 + 1, 3)])
@pytest.mark.parametrize("first_byte", [0, 8])
def test_arrives_whatever_the_memory(first_byte: int, shape: tuple[int, ...], dtype: DTypeLike):
    transport = _Early(LocalWorld(1).transport(0), first_byte=first_byte)
    like = jax.ShapeDtypeStruct(shape, np.dtype(dtype))
    sent = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    arrivals = [receive_jax(transport, like, source=0, tag=0) for _ in range(2)]
    for values in (sent, -sent):
        transport.send(values, to=0, tag=0)
    for arrival, values in zip(arrivals, (sent, -sent), strict=True):
        array = arrival.wait(timeout_s=5.0)
        assert isinstance(array, jax.Array)
        assert np.array_equal(np.asarray(array, np.float64), values.astype(np.float32))


def test_large_ones_are_made_ahead():
    transport = _Early(LocalWorld(1).transport(0))
    like = jax.ShapeDtypeStruct((2**20,), np.dtype(np.float32))
    arrival = receive_jax(transport, like, source=0, tag=0)
    assert arrival.hidden is not None
    transport.send(np.ones(2**20, np.float32), to=0, tag=0)
    assert float(arrival.wait(timeout_s=5.0).sum()) == 2**20


def test_lies_where_it_is_wanted():
    place = SingleDeviceSharding(jax.local_devices()[-1])
    transport = LocalWorld(1).transport(0)
    like = jax.ShapeDtypeStruct((5,), np.dtype(np.float32), sharding=place)
    arrival = receive_jax(transport, like, source=0, tag=0)
    transport.send(np.ones(5, np.float32), to=0, tag=0)
    assert arrival.wait(timeout_s=5.0).sharding == place
