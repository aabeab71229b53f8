"""Receive into memory that a jax array already aliases, so that its arrival costs nothing more.

jax takes 12 to 30 us to make an array out of memory, as long as half a mebibyte takes to arrive. A
receive that is posted ahead does that meanwhile: the array refers to memory that is still being
written, and is not returned before the message is complete::

    post    memory ──► jax array, hidden         message ──► wait returns the array
"""

from dataclasses import dataclass
from functools import cache

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpipe.comm.buffer import is_cheaply_copied, to_jax
from jaxpipe.comm.transport import Receiving, Transport


@dataclass(frozen=True, slots=True)
class Arrival:
    """A receive that returns a jax array; `hidden` is that array if it exists already."""

    receiving: Receiving
    like: jax.ShapeDtypeStruct
    hidden: jax.Array | None

    def wait(self, *, timeout_s: float) -> jax.Array:
        """Return the array, on the devices of `like.sharding`.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        array = self.receiving.wait(timeout_s=timeout_s)
        if self.hidden is not None:
            return self.hidden
        if self.like.sharding is None:
            return to_jax(array)
        return jax.device_put(array, self.like.sharding)


def receive_jax(
    transport: Transport, like: jax.ShapeDtypeStruct, *, source: int, tag: int
) -> Arrival:
    """Start to receive a jax array of the shape and dtype of `like` from the rank `source`.

    It is placed as `like.sharding` says, by default on the first device. A large array for a CPU is
    made now if `transport.receive` returns a handle with a `memory`: the NumPy array that its
    `wait` will return, which is being written meanwhile.

    >>> from jaxpipe.comm.local import LocalWorld
    >>> transport = LocalWorld(1).transport(0)
    >>> arrival = receive_jax(transport, jax.ShapeDtypeStruct((2,), np.float32), source=0, tag=0)
    >>> sending = transport.send(np.ones(2, np.float32), to=0, tag=0)
    >>> arrival.wait(timeout_s=1.0)
    Array([1., 1.], dtype=float32)
    """
    receiving = transport.receive(like, source=source, tag=tag)
    memory = getattr(receiving, "memory", None)
    if memory is None or like.sharding is not None or is_cheaply_copied(memory):
        return Arrival(receiving, like, None)
    return Arrival(receiving, like, _alias(memory))


def _alias(memory: np.ndarray) -> jax.Array | None:
    """Return a jax array that aliases this memory, or None if jax copies instead."""
    sharding = _first_cpu()
    if sharding is None:
        return None
    array = jax.make_array_from_callback(memory.shape, sharding, lambda _: memory)
    # jax copies memory that is not aligned, and converts dtypes that it does not have.
    is_alias = array.unsafe_buffer_pointer() == memory.ctypes.data
    return array if is_alias and array.dtype == memory.dtype else None


@cache
def _first_cpu() -> SingleDeviceSharding | None:
    """Return the sharding of the first device, or None if that is not a CPU."""
    device = jax.local_devices()[0]
    return SingleDeviceSharding(device) if device.platform == "cpu" else None
