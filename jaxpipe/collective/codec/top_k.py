"""Sparsifying codec for gradients with error feedback: the largest magnitudes and their indices."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.codec.codec_facts import CodecFacts, CodecLimit, Coding


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKCodec:
    """Keeps `ceil(fraction * n)` of n values unchanged, and drops the others.

    Values that are not finite count as largest. 8 bytes per kept value, indices first::

        index, index, ... | value, value, ...

    Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    >>> codec = TopKCodec(fraction=0.5)
    >>> codec.decode(codec.encode(np.array([1, -3, 2, 0], np.float32)), size=4)
    array([ 0., -3.,  2.,  0.], dtype=float32)
    """

    fraction: float = 0.01

    def __post_init__(self):
        assert 0.0 < self.fraction <= 1.0, self.fraction

    def num_kept(self, *, size: int) -> int:
        """Return how many of `size` values are kept."""
        return math.ceil(self.fraction * size)

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 8 * self.num_kept(size=size)

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        assert values.size < 2**32, values.size
        num_kept = self.num_kept(size=values.size)
        # Also for an empty array, which `argpartition` refuses.
        if num_kept == values.size:
            indices = np.arange(num_kept, dtype=np.uint32)
        else:
            # Without the sign bit, floats order like integers, with NaN and infinity on top.
            magnitudes = np.bitwise_and(values.view(np.uint32), np.uint32(0x7FFF_FFFF))
            indices = np.argpartition(magnitudes, values.size - num_kept)[values.size - num_kept :]
            indices = np.sort(indices).astype(np.uint32)
        return np.concatenate((indices.view(np.uint8), values[indices].view(np.uint8)))

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        assert encoded.size == self.num_bytes(size=size), (encoded.size, size)
        half = encoded.size // 2
        values = aligned_empty((size,), np.float32)
        values[...] = 0.0
        values[encoded[:half].view(np.uint32)] = encoded[half:].view(np.float32)
        return values


TOP_K = CodecFacts(
    make=TopKCodec,
    coding=Coding(encode_s=3.5e-9, decode_s=0.2e-9),
    limit=CodecLimit.ANY,
    needs_feedback=True,
    takes_fraction=True,
)
