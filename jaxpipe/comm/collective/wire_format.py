"""Wire formats of all-reduces: the dtype of messages, the codec of far ones, and their size.

Totals are float32 at least, whatever the wire format: with bfloat16 messages a sum is rounded once
per message, not once per addition.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.collective.codec.codec import Codec, encode_with_feedback

_LARGEST_CODED_BYTES = 4


def is_floating(dtype: np.dtype) -> bool:
    """Return whether this is a floating-point dtype, whose values may be rounded.

    >>> is_floating(np.dtype(jnp.bfloat16)), is_floating(np.dtype(np.int8))
    (True, False)
    """
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_codable(dtype: np.dtype) -> bool:
    """Return whether codecs apply to this dtype: float32 or a smaller floating-point type.

    >>> is_codable(np.dtype(jnp.bfloat16)), is_codable(np.dtype(np.float64))
    (True, False)
    """
    return is_floating(dtype) and dtype.itemsize <= _LARGEST_CODED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """How the values of an all-reduce are sent.

    `dtype`: of the messages of floating-point arrays, by default that of the array. `far`: a codec
    for messages between the members of the whole tree, in a hierarchical all-reduce.
    `chunk_bytes`: the largest size of a message; larger arrays are sent in chunks. `encodes`: the
    dtypes of arrays that the codec encodes; a certificate, which computes in float64, adds that.
    """

    dtype: np.dtype | None = None
    far: Codec | None = None
    chunk_bytes: int = 2**20
    encodes: Callable[[np.dtype], bool] = is_codable

    def __post_init__(self):
        assert self.chunk_bytes > 0, self.chunk_bytes

    def dtype_of(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the messages of an array of this dtype.

        >>> WireFormat(dtype=np.dtype(np.float16)).dtype_of(np.dtype(np.float32))
        dtype('float16')
        """
        return self.dtype if self.dtype is not None and is_floating(dtype) else dtype


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of totals: float32 at least for floating-point arrays.

    >>> [str(sum_dtype(np.dtype(name))) for name in ("float16", "float64", "int8")]
    ['float32', 'float64', 'int8']
    """
    is_small = is_floating(dtype) and dtype.itemsize < 4  # sums of many would lose digits
    return np.dtype(np.float32) if is_small else dtype


@runtime_checkable
class Format(Protocol):
    """Encodes parts as messages and decodes them; decoding and encoding again changes nothing."""

    def like(self, *, size: int) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the message of `size` values."""
        ...

    def encode(self, values: np.ndarray, *, start: int) -> np.ndarray:
        """Return the message of the values that begin at `start` of the whole array."""
        ...

    def decode(self, message: np.ndarray, *, size: int) -> np.ndarray:
        """Return the values, of a dtype that NumPy can add to the total."""
        ...


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Values of a dtype; no copy if they have it already."""

    dtype: np.dtype

    def like(self, *, size: int) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the message of `size` values."""
        return jax.ShapeDtypeStruct((size,), self.dtype)

    def encode(self, values: np.ndarray, *, start: int) -> np.ndarray:  # noqa: ARG002
        """Return the values, rounded to the dtype."""
        return values.astype(self.dtype, copy=False)

    def decode(self, message: np.ndarray, *, size: int) -> np.ndarray:  # noqa: ARG002
        """Return the message, which is the values."""
        return message


@dataclass(frozen=True, slots=True)
class CodecFormat:
    """The bytes of a codec; `errors`, of the array's size, accumulates its error for feedback.

    No part may be encoded twice in one all-reduce: its error would be added twice.
    """

    codec: Codec
    errors: np.ndarray | None = None

    def like(self, *, size: int) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the message of `size` values."""
        return jax.ShapeDtypeStruct((self.codec.num_bytes(size=size),), np.dtype(np.uint8))

    def encode(self, values: np.ndarray, *, start: int) -> np.ndarray:
        """Return the bytes; with `errors`, add the previous error and store the new one."""
        values = values.astype(np.float32, copy=False)
        if self.errors is None:
            return self.codec.encode(values)
        part = slice(start, start + values.size)
        encoded, self.errors[part] = encode_with_feedback(self.codec, values, self.errors[part])
        return encoded

    def decode(self, message: np.ndarray, *, size: int) -> np.ndarray:
        """Return the values, float32."""
        return self.codec.decode(message, size=size)
