"""Block-quantized codecs: 8 bits per value, and a float32 scale for each block of 256 values.

A block is divided by its scale, so that its largest magnitude becomes the largest code::

    scale, scale, ... | code, code, code, ...        4 ceil(n / 256) + n bytes for n values

A block with a value that is not finite decodes to NaN altogether. One whose scale would be
subnormal decodes to zeros.

Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016; Micikevicius
et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, for the format e4m3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.collective.codec_bytes import BLOCK
from jaxpipe.comm.buffer import aligned_empty

LARGEST_INT8 = 127.0
LARGEST_FLOAT8 = 448.0

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_VALUE_OF_FLOAT8 = np.arange(256, dtype=np.uint8).view(_FLOAT8).astype(np.float32)
_FLOAT8_OF_FLOAT16 = (
    np.nan_to_num(np.arange(2**16, dtype=np.uint16).view(np.float16))
    .clip(-LARGEST_FLOAT8, LARGEST_FLOAT8)
    .astype(_FLOAT8)
    .view(np.uint8)
)


@dataclass(frozen=True, slots=True)
class Int8Codec:
    """Rounds to 255 even steps: the error is at most 1 / 254 of the block's largest magnitude.

    >>> codec = Int8Codec()
    >>> codec.decode(codec.encode(np.array([10.2, -127.0], np.float32)), size=2)
    array([  10., -127.], dtype=float32)
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 4 * _num_blocks(size) + size

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        return _encode(values, _to_int8, largest=LARGEST_INT8)

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        return _decode(encoded, _from_int8, size=size)


@dataclass(frozen=True, slots=True)
class Float8Codec:
    """Rounds to float8 e4m3: a relative error of about 1 / 16; small values keep their sign.

    Converts through float16, which is four times as fast as ml_dtypes' own conversion; a value
    within 1 / 2048 of the middle of two codes may be rounded to either of them.

    >>> codec = Float8Codec()
    >>> codec.decode(codec.encode(np.array([448.0, 0.3], np.float32)), size=2)
    array([4.480e+02, 3.125e-01], dtype=float32)
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 4 * _num_blocks(size) + size

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        return _encode(values, _to_float8, largest=LARGEST_FLOAT8)

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        return _decode(encoded, _from_float8, size=size)


def _num_blocks(size: int) -> int:
    return -(-size // BLOCK)


def _encode(
    values: np.ndarray, to_codes: Callable[[np.ndarray], np.ndarray], *, largest: float
) -> np.ndarray:
    blocks = _blocks(values)
    magnitudes = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
    scales = magnitudes / np.float32(largest)
    # A subnormal scale would overflow in the division: such blocks become zeros.
    usable = np.isfinite(scales) & (scales >= np.finfo(np.float32).tiny)
    factors = np.divide(1.0, scales, out=np.zeros_like(scales), where=usable)
    scales[~np.isfinite(scales)] = np.nan
    with np.errstate(invalid="ignore"):  # infinity times 0; the scale of the block is NaN anyway
        codes = to_codes(blocks * factors[:, None])
    return np.concatenate((scales.view(np.uint8), codes.reshape(-1)[: values.size]))


def _decode(
    encoded: np.ndarray, from_codes: Callable[[np.ndarray, np.ndarray], None], *, size: int
) -> np.ndarray:
    num_scales = _num_blocks(size)
    assert encoded.size == 4 * num_scales + size, (encoded.size, size)
    # Copied, since float32 needs an alignment that bytes inside of a message do not have.
    scales = np.frombuffer(encoded[: 4 * num_scales].tobytes(), np.float32)
    values = aligned_empty((size,), np.float32)
    from_codes(encoded[4 * num_scales :], values)
    whole = size - size % BLOCK
    blocks = values[:whole].reshape(-1, BLOCK)
    np.multiply(blocks, scales[: len(blocks), None], out=blocks)
    values[whole:] *= scales[-1] if whole < size else 1
    return values


def _blocks(values: np.ndarray) -> np.ndarray:
    """Return the values as rows of `BLOCK`, the last one padded with zeros."""
    if values.size % BLOCK == 0:
        return values.reshape(-1, BLOCK)
    filled = np.zeros(_num_blocks(values.size) * BLOCK, np.float32)
    filled[: values.size] = values
    return filled.reshape(-1, BLOCK)


def _to_int8(scaled: np.ndarray) -> np.ndarray:
    np.rint(scaled, out=scaled)
    np.nan_to_num(scaled, copy=False)
    return scaled.astype(np.int8).view(np.uint8)


def _from_int8(codes: np.ndarray, values: np.ndarray) -> None:
    values[...] = codes.view(np.int8)


def _from_float8(codes: np.ndarray, values: np.ndarray) -> None:
    np.take(_VALUE_OF_FLOAT8, codes, out=values, mode="clip")  # a byte is in range; clip is faster


def _to_float8(scaled: np.ndarray) -> np.ndarray:
    halves = scaled.astype(np.float16)
    return np.take(_FLOAT8_OF_FLOAT16, halves.view(np.uint16))
