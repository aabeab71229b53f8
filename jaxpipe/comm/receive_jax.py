"""Receive into memory that is a jax array already, so that nothing is left to do when it arrives.

jax takes 12 to 30 us to make an array out of memory, as long as half a mebibyte takes to come. A
receive that is posted ahead can do that meanwhile: the array refers to memory that is still being
written, and nobody sees it before the message is there::

    post    memory ──► jax array, unseen         message ──► wait returns the array
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
    """A message on its way in, to become a jax array; `unseen` is that array, or None."""

    receiving: Receiving
    like: jax.ShapeDtypeStruct
    unseen: jax.Array | None

    def wait(self, *, timeout_s: float) -> jax.Array:
        """Return the array, which lies where `like` says.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        array = self.receiving.wait(timeout_s=timeout_s)
        if self.unseen is not None:
            return self.unseen
        if self.like.sharding is None:
            return to_jax(array)
        return jax.device_put(array, self.like.sharding)


def receive_jax(
    transport: Transport, like: jax.ShapeDtypeStruct, *, source: int, tag: int
) -> Arrival:
    """Start to receive a jax array of the shape and dtype of `like` from the rank `source`.

    It will lie as `like.sharding` says, or on the first device. A large one for a CPU is made now,
    if `transport.receive` returns something with a `memory`: the NumPy array that its `wait` will
    return, which is being written meanwhile.

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
    """Return a jax array that lies in this memory, or None if jax would rather copy it."""
    place = _first_cpu()
    if place is None:
        return None
    array = jax.make_array_from_callback(memory.shape, place, lambda _: memory)
    lies_there = array.unsafe_buffer_pointer() == memory.ctypes.data
    return array if lies_there and array.dtype == memory.dtype else None


@cache
def _first_cpu() -> SingleDeviceSharding | None:
    """Return where arrays lie by default, or None if that is no CPU."""
    device = jax.local_devices()[0]
    return SingleDeviceSharding(device) if device.platform == "cpu" else None
