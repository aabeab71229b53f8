"""How a part becomes a message, and a message a part: as values of a dtype, or through a codec."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from jaxpipe.comm.codec.codec import Codec
from jaxpipe.comm.codec.error_feedback import encode_with_feedback


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
