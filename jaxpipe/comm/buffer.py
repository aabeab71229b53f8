"""Host memory for transports: arrays as bytes, and aligned buffers that jax takes without a copy.

On the CPU `jax.device_put` aliases a NumPy array whose memory starts at a multiple of 64 bytes and
copies any other. An aliased buffer must not be written while jax refers to it: see `BufferPool`.
"""

import math

import jax
import numpy as np

from jaxpipe.comm.transport import HostOrDeviceArray

_CHEAPLY_COPIED_BYTES = 2**17


def as_bytes(array: HostOrDeviceArray) -> np.ndarray:
    """Return the array's bytes, uint8 of shape (num_bytes,), without a copy if possible.

    Waits until a jax array is computed. Copies an array that is not contiguous or not on the host.

    >>> as_bytes(np.array([1, 256], "<i2")).tolist()
    [1, 0, 0, 1]
    """
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)


def is_ready(array: HostOrDeviceArray) -> bool:
    """Return whether the array can be read without waiting; a deleted one raises when it is read.

    jax crashes if a deleted array is asked; the stub of `jax.Array` lacks `is_ready`.

    >>> is_ready(np.zeros(3))
    True
    """
    if not isinstance(array, jax.Array):
        return True
    return array.is_deleted() or array.is_ready()  # pyright: ignore[reportAttributeAccessIssue]


def is_cheaply_copied(array: HostOrDeviceArray) -> bool:
    """Return whether a copy takes less time than `jax.device_put` takes to alias the memory."""
    return array.nbytes <= _CHEAPLY_COPIED_BYTES


@jax.jit
def _copy(array: jax.Array) -> jax.Array:
    return array


def to_jax(array: HostOrDeviceArray) -> jax.Array:
    """Return a received array as a jax array on the default device, in the fastest way.

    A small array is copied by a jitted identity (on the CPU about 7 us), which is compiled once for
    each shape and dtype; a large one is aliased by `jax.device_put`, which takes about 35 us.

    >>> float(to_jax(np.ones(3, np.float32)).sum())
    3.0
    """
    if is_cheaply_copied(array):
        return _copy(array)
    return jax.device_put(array)


def num_bytes_of(like: jax.ShapeDtypeStruct | HostOrDeviceArray) -> int:
    """Return the number of bytes of an array of this shape and dtype.

    >>> num_bytes_of(jax.ShapeDtypeStruct((3, 2), np.float32))
    24
    """
    return math.prod(like.shape) * np.dtype(like.dtype).itemsize
