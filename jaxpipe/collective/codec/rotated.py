"""Three bits per value: blocks are rotated, so that no value sticks out, then rounded to 8 levels.

::

    x ──► signs ──► Hadamard ──► y, nearly normal whatever x is ──► code of 3 bits, factor f
    f = |x|^2 / <y, level(code)>                                    so that <x, decoded> = |x|^2

A block of 128 values is 16 bytes for each bit and 2 of the factor (bfloat16), 3.125 bits a value.
The levels are those with the least squared error for a normal distribution. The factor makes the
error orthogonal to the block: it is not made smaller on average, as by rounding to such levels. The
rotation only adds and subtracts, in one order: every machine decodes the same bits.

A block with a value that is not finite decodes to NaN altogether.

Source: Vargaftik et al., "EDEN: Communication-Efficient and Robust Distributed Mean Estimation",
ICML 2022, algorithm 1; Max, "Quantizing for Minimum Distortion", 1960, table 1, for the levels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.codec.codec_facts import CodecFacts, CodecLimit, Coding

BLOCK = 128
"""Values that are rotated together, and share a factor of 2 bytes."""
_BITS = 3
_FACTOR_BYTES = 2
_PIECE = 2**16
"""Values that are encoded at a time, of whole blocks: their copies stay in a core's own cache."""
_THRESHOLDS = (0.5006, 1.0500, 1.7480)
_MAGNITUDES = np.array([0.2451, 0.7560, 1.3439, 2.1520], np.float32)
_LEVELS = np.concatenate((_MAGNITUDES, -_MAGNITUDES))
"""By the code: 4 for a negative value, and the number of thresholds below its magnitude."""
_SIGNS = np.where(np.random.default_rng(128).random(BLOCK) < 0.5, -1, 1).astype(np.float32)
"""At random, and for all blocks the same; without them an even block would be one coefficient."""


@dataclass(frozen=True, slots=True)
class RotatedCodec:
    """Rounds rotated blocks to 3 bits: an error of about 0.19 of the block's norm.

    >>> codec = RotatedCodec()
    >>> codec.num_bytes(size=128) * 8 / 128
    3.125
    >>> codec.decode(codec.encode(np.array([0.0, 2.0], np.float32)), size=2).round(1).tolist()
    [0.0, 2.0]
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return -(-size // BLOCK) * (_FACTOR_BYTES + _BITS * BLOCK // 8)

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        encoded = np.empty(self.num_bytes(size=values.size), np.uint8)
        for start, factors, planes in _pieces(encoded, values.size):
            piece = values[start : start + _PIECE]
            columns = np.zeros((BLOCK, factors.size), np.float32)
            num_blocks = piece.size // BLOCK
            columns[:, :num_blocks] = piece[: num_blocks * BLOCK].reshape(num_blocks, BLOCK).T
            if num_blocks < factors.size:
                columns[: piece.size - num_blocks * BLOCK, -1] = piece[num_blocks * BLOCK :]
            factors[...] = _encode_columns(columns, planes).view(np.uint16)
        return encoded

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        assert encoded.size == self.num_bytes(size=size), (encoded.size, size)
        values = aligned_empty((size,), np.float32)
        # A copy: the factors need an alignment that bytes inside of a message do not have.
        for start, factors, planes in _pieces(encoded.copy(), size):
            high, low, negative = (
                np.unpackbits(plane).reshape(BLOCK, factors.size) for plane in planes
            )
            columns = _LEVELS[negative << 2 | high << 1 | low]
            columns *= factors.view(ml_dtypes.bfloat16).astype(np.float32)
            _rotate(columns)
            columns *= _SIGNS[:, None]
            piece = values[start : start + _PIECE]
            piece[...] = columns.T.reshape(-1)[: piece.size]
        return values


ROTATED3 = CodecFacts(
    make=RotatedCodec, coding=Coding(encode_s=7.5e-9, decode_s=5.8e-9), limit=CodecLimit.ANY
)


def _pieces(encoded: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield for each piece its first value, its factors, and its three planes of bits."""
    num_blocks = -(-size // BLOCK)
    end = num_blocks * _FACTOR_BYTES
    factors, bits = encoded[:end].view(np.uint16), encoded[end:]
    for start in range(0, size, _PIECE):
        first = start // BLOCK
        last = min(first + _PIECE // BLOCK, num_blocks)
        planes = bits[first * _BITS * BLOCK // 8 : last * _BITS * BLOCK // 8]
        yield start, factors[first:last], planes.reshape(_BITS, -1)


def _encode_columns(columns: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Write the bits of blocks, which are columns, and return their factors; changes `columns`."""
    largest = np.maximum(columns.max(axis=0), -columns.min(axis=0))
    # Divided by the largest, no square overflows; a subnormal one would overflow in the division.
    usable = np.isfinite(largest) & (largest >= np.finfo(np.float32).tiny)
    with np.errstate(invalid="ignore"):  # infinity times 0; the factor of the block is NaN anyway
        columns *= np.divide(1.0, largest, out=np.zeros_like(largest), where=usable)
        columns *= _SIGNS[:, None]
        square = _column_sums(columns * columns)
        _rotate(columns)
        negative = columns < 0
        np.abs(columns, out=columns)
        # Not divided by the square root of BLOCK, as the rotated values are not either.
        norm = np.sqrt(square)
        low, high, top = (columns > threshold * norm for threshold in _THRESHOLDS)
    low ^= high ^ top
    for plane, bits in zip(planes, (high, low, negative), strict=True):
        plane[...] = np.packbits(bits)
    levels = _MAGNITUDES[high.view(np.uint8) << 1 | low.view(np.uint8)]
    levels *= columns
    inner = _column_sums(levels)
    factors = np.divide(largest * square, inner, out=np.zeros_like(largest), where=usable)
    factors[~np.isfinite(largest)] = np.nan
    return factors.astype(ml_dtypes.bfloat16)


def _rotate(columns: np.ndarray) -> None:
    """Multiply by the Hadamard matrix of order 128, in place; twice is 128 times the identity.

    >>> columns = np.eye(BLOCK, dtype=np.float32)
    >>> _rotate(columns)
    >>> bool((columns @ columns == BLOCK * np.eye(BLOCK)).all())
    True
    """
    size = 1
    while size < BLOCK:
        pairs = columns.reshape(BLOCK // (2 * size), 2, size, -1)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        size *= 2


def _column_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums of columns, added in an order that does not depend on their number."""
    while len(columns) > 1:
        half = len(columns) // 2
        columns = columns[:half] + columns[half:]
    return columns[0]
