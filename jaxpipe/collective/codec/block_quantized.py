"""Block-quantized codecs: 8 or 4 bits per value, and a float32 scale for each block of values.

A block is divided by its scale, so that its largest magnitude becomes the largest code::

    scale, scale, ... | code, code, code, ...        4 ceil(n / 256) + n bytes for n values
    scale, scale, ... | code + 16 code, ...          4 ceil(n / 64) + ceil(n / 2) bytes in int4

A block with a value that is not finite decodes to NaN altogether. One whose scale would be
subnormal decodes to zeros.

Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016; Micikevicius
et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, for the format e4m3. Blocks of 64 for
4 bits: Dettmers et al., "QLoRA", NeurIPS 2023, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.codec.codec_facts import CodecFacts, CodecLimit, Coding

BLOCK = 256
"""Values that share a scale of 4 bytes in the codecs of 8 bits."""
INT4_BLOCK = 64
"""The same for 4 bits: smaller blocks, since a value as large as the largest leaves 15 steps."""
LARGEST_INT4 = 7.0
LARGEST_INT8 = 127.0
LARGEST_FLOAT8 = 448.0
_PIECE = 2**16
"""Values that are encoded at a time, of whole blocks: their copies stay in a core's own cache."""

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


@dataclass(frozen=True, slots=True)
class Int4Codec:
    """Rounds to 15 even steps: the error is at most 1 / 14 of the block's largest magnitude.

    >>> codec = Int4Codec()
    >>> codec.decode(codec.encode(np.array([7.0, -3.2, 0.4], np.float32)), size=3)
    array([ 7., -3.,  0.], dtype=float32)
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 4 * _num_blocks(size, INT4_BLOCK) + -(-size // 2)

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        return _encode(values, _to_int4, largest=LARGEST_INT4, block=INT4_BLOCK, values_per_byte=2)

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory."""
        assert encoded.size == self.num_bytes(size=size), (encoded.size, size)
        num_bytes = 4 * _num_blocks(size, INT4_BLOCK)
        pairs = encoded[num_bytes:].view(np.int8)
        codes = np.empty((pairs.size, 2), np.int8)
        # Shifts of signed integers repeat the sign bit.
        codes[:, 0], codes[:, 1] = (pairs << 4) >> 4, pairs >> 4
        unpacked = codes.reshape(-1)[:size].view(np.uint8)
        message = np.concatenate((encoded[:num_bytes], unpacked))
        return _decode(message, _from_int8, size=size, block=INT4_BLOCK)


INT8 = CodecFacts(
    make=Int8Codec, coding=Coding(encode_s=2.7e-9, decode_s=0.4e-9), limit=CodecLimit.SAFE
)
FP8 = CodecFacts(
    make=Float8Codec,
    coding=Coding(encode_s=4.9e-9, decode_s=1.8e-9),
    limit=None,  # the bytes of int8 in more seconds
)
INT4 = CodecFacts(
    make=Int4Codec, coding=Coding(encode_s=6.1e-9, decode_s=1.0e-9), limit=CodecLimit.ANY
)


def _num_blocks(size: int, block: int = BLOCK) -> int:
    return -(-size // block)


def _encode(
    values: np.ndarray,
    to_codes: Callable[[np.ndarray], np.ndarray],
    *,
    largest: float,
    block: int = BLOCK,
    values_per_byte: int = 1,
) -> np.ndarray:
    num_scales = _num_blocks(values.size, block)
    encoded = np.empty(4 * num_scales + -(-values.size // values_per_byte), np.uint8)
    scales, codes = encoded[: 4 * num_scales].view(np.float32), encoded[4 * num_scales :]
    for start in range(0, values.size, _PIECE):
        piece = _blocks(values[start : start + _PIECE], block)
        of_piece = scales[start // block : start // block + len(piece)]
        scaled = _scaled(piece, largest=largest, scales=of_piece)
        part = codes[start // values_per_byte : (start + _PIECE) // values_per_byte]
        part[...] = to_codes(scaled).reshape(-1)[: part.size]
    return encoded


def _scaled(blocks: np.ndarray, *, largest: float, scales: np.ndarray) -> np.ndarray:
    """Return each block over its scale; the scales are written to `scales`."""
    magnitudes = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
    np.divide(magnitudes, np.float32(largest), out=scales)
    # A subnormal scale would overflow in the division: such blocks become zeros.
    usable = np.isfinite(scales) & (scales >= np.finfo(np.float32).tiny)
    factors = np.divide(1.0, scales, out=np.zeros_like(scales), where=usable)
    scales[~np.isfinite(scales)] = np.nan
    with np.errstate(invalid="ignore"):  # infinity times 0; the scale of the block is NaN anyway
        return blocks * factors[:, None]


def _decode(
    encoded: np.ndarray,
    from_codes: Callable[[np.ndarray, np.ndarray], None],
    *,
    size: int,
    block: int = BLOCK,
) -> np.ndarray:
    num_scales = _num_blocks(size, block)
    assert encoded.size == 4 * num_scales + size, (encoded.size, size)
    # Copied, since float32 needs an alignment that bytes inside of a message do not have.
    scales = np.frombuffer(encoded[: 4 * num_scales].tobytes(), np.float32)
    values = aligned_empty((size,), np.float32)
    from_codes(encoded[4 * num_scales :], values)
    num_whole = size - size % block
    blocks = values[:num_whole].reshape(-1, block)
    np.multiply(blocks, scales[: len(blocks), None], out=blocks)
    values[num_whole:] *= scales[-1] if num_whole < size else 1
    return values


def _blocks(values: np.ndarray, block: int) -> np.ndarray:
    """Return the values as rows of a block each, the last one padded with zeros."""
    if values.size % block == 0:
        return values.reshape(-1, block)
    filled = np.zeros(_num_blocks(values.size, block) * block, np.float32)
    filled[: values.size] = values
    return filled.reshape(-1, block)


def _to_int8(scaled: np.ndarray) -> np.ndarray:
    np.rint(scaled, out=scaled)
    with np.errstate(invalid="ignore"):  # NaN becomes any code: the scale of its block is NaN
        return scaled.astype(np.int8).view(np.uint8)


def _to_int4(scaled: np.ndarray) -> np.ndarray:
    codes = _to_int8(scaled).reshape(-1)
    # Two's complement: the low four bits of a code are the code in four bits.
    return codes[::2] & 15 | codes[1::2] << 4


def _from_int8(codes: np.ndarray, values: np.ndarray) -> None:
    values[...] = codes.view(np.int8)


def _from_float8(codes: np.ndarray, values: np.ndarray) -> None:
    np.take(_VALUE_OF_FLOAT8, codes, out=values, mode="clip")  # a byte is in range; clip is faster


def _to_float8(scaled: np.ndarray) -> np.ndarray:
    halves = scaled.astype(np.float16)
    return np.take(_FLOAT8_OF_FLOAT16, halves.view(np.uint16))
