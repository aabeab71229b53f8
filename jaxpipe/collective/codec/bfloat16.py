"""Codec that rounds float32 to bfloat16: half the bytes."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.codec.codec_facts import CodecFacts, CodecLimit, Coding


@dataclass(frozen=True, slots=True)
class Bfloat16Codec:
    """Keeps 8 bits of each value's mantissa: the relative error is at most 1 / 256.

    >>> codec = Bfloat16Codec()
    >>> codec.decode(codec.encode(np.array([1.0, 3.14159], np.float32)), size=2)
    array([1.      , 3.140625], dtype=float32)
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 2 * size

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        return values.astype(ml_dtypes.bfloat16).view(np.uint8)

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        assert encoded.size == self.num_bytes(size=size), (encoded.size, size)
        values = aligned_empty((size,), np.float32)
        values[...] = encoded.view(ml_dtypes.bfloat16)
        return values


BF16 = CodecFacts(
    make=Bfloat16Codec,
    coding=Coding(encode_s=0.4e-9, decode_s=0.2e-9),
    limit=CodecLimit.SAFE,
)
