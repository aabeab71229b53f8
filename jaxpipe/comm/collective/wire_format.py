"""What travels in an all-reduce: the dtype of messages, the codec of far ones, their size.

Sums are made in float32 at least, whatever travels: a float32 total and bfloat16 wires lose the
precision of one rounding for each message, not of one for each addition.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm.codec.codec import Codec, encode_with_feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """How the values of an all-reduce travel.

    `dtype`: that of the messages, if the array is a floating one; None for its own. `far`: a codec
    for what the members of the whole tree exchange, in a hierarchical all-reduce; None for none.
    `chunk_bytes`: how many bytes one message has at most; the chunks of an array follow each other.
    """

    dtype: np.dtype | None = None
    far: Codec | None = None
    chunk_bytes: int = 2**20

    def __post_init__(self):
        assert self.chunk_bytes > 0, self.chunk_bytes

    def dtype_of(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype in which an array of this dtype travels.

        >>> WireFormat(dtype=np.dtype(np.float16)).dtype_of(np.dtype(np.float32))
        dtype('float16')
        """
        return self.dtype if self.dtype is not None and is_floating(dtype) else dtype


def is_floating(dtype: np.dtype) -> bool:
    """Return whether values of this dtype may be rounded.

    >>> is_floating(np.dtype(jnp.bfloat16)), is_floating(np.dtype(np.int8))
    (True, False)
    """
    return bool(jnp.issubdtype(dtype, jnp.floating))


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which arrays are summed: float32 at least for floating ones.

    >>> [str(sum_dtype(np.dtype(name))) for name in ("float16", "float64", "int8")]
    ['float32', 'float64', 'int8']
    """
    is_small = is_floating(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_small else dtype


@runtime_checkable
class Format(Protocol):
    """Both directions; what has been decoded and encoded once decodes to the same values again."""

    def like(self, *, size: int) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the message of `size` values."""
        ...

    def encode(self, values: np.ndarray, *, start: int) -> np.ndarray:
        """Return the message of the values that stand from `start` on in the whole array."""
        ...

    def decode(self, message: np.ndarray, *, size: int) -> np.ndarray:
        """Return the values, of any dtype that numpy adds to the total."""
        ...


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Values of a dtype, without a copy where they have it already."""

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
    """The bytes of a codec; `errors`, as long as the array, holds what each part has lost so far.

    No part may be encoded twice in one all-reduce, for its error would be added twice.
    """

    codec: Codec
    errors: np.ndarray | None = None

    def like(self, *, size: int) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the message of `size` values."""
        return jax.ShapeDtypeStruct((self.codec.num_bytes(size=size),), np.dtype(np.uint8))

    def encode(self, values: np.ndarray, *, start: int) -> np.ndarray:
        """Return the bytes, and keep the error if errors are kept."""
        values = values.astype(np.float32, copy=False)
        if self.errors is None:
            return self.codec.encode(values)
        place = slice(start, start + values.size)
        encoded, self.errors[place] = encode_with_feedback(self.codec, values, self.errors[place])
        return encoded

    def decode(self, message: np.ndarray, *, size: int) -> np.ndarray:
        """Return the values, float32."""
        return self.codec.decode(message, size=size)
