"""Bytes and seconds per value of each codec, for planners and simulators, which need no codec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from jaxpipe.collective.kinds import CodecKind

BLOCK = 256
"""Values that share a scale of 4 bytes in the block-quantized codecs of 8 bits."""
INT4_BLOCK = 64
"""The same for 4 bits: smaller blocks, since a value as large as the largest leaves 15 steps."""
ROTATED_BLOCK = 128
"""Values that are rotated together, and share a factor of 2 bytes, in the codec of 3 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Seconds of the host: for which a message is encoded, and for which it is decoded.

    >>> Coding(encode_s=2.0, decode_s=0.5).times(10)
    Coding(encode_s=20.0, decode_s=5.0)
    """

    encode_s: float = 0.0
    decode_s: float = 0.0

    def times(self, factor: float) -> "Coding":
        """Return the seconds of `factor` times as many values."""
        if self == NO_CODING:
            return NO_CODING
        return Coding(encode_s=self.encode_s * factor, decode_s=self.decode_s * factor)


NO_CODING = Coding()
"""A message that is sent as it is."""

CodingRates: TypeAlias = Mapping[CodecKind, Coding]
"""The seconds that one core encodes and decodes a value, of codecs that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The codecs of a run, as in the section `comm` of its configuration.

    `boundary` is that of all messages between stages, `gradients` that of the messages across the
    root of each sync tree in a hierarchical all-reduce; all other messages are sent as they are.

    >>> print(Codecs(), "|", Codecs(boundary=CodecKind.INT8, gradients=CodecKind.BF16))
    no codecs | int8 between stages, bf16 for gradients
    """

    boundary: CodecKind = CodecKind.NONE
    gradients: CodecKind = CodecKind.NONE
    top_k_fraction: float = 0.01

    def boundary_ratio(self, value_bytes: float) -> float:
        """Return the bytes between stages over those without a codec, `value_bytes` a value."""
        return self._ratio(self.boundary, value_bytes)

    def far_ratio(self, value_bytes: float) -> float:
        """Return the bytes of far gradients over those without a codec, `value_bytes` a value."""
        return self._ratio(self.gradients, value_bytes)

    def _ratio(self, codec: CodecKind, value_bytes: float) -> float:
        if codec is CodecKind.NONE:
            return 1.0  # values are not float32 on the wire then, whatever their size
        return bytes_per_value(codec, top_k_fraction=self.top_k_fraction) / value_bytes

    def __str__(self) -> str:
        """Return what is compressed, and how."""
        places = ((self.boundary, "between stages"), (self.gradients, "for gradients"))
        used = [f"{codec} {where}" for codec, where in places if codec is not CodecKind.NONE]
        return ", ".join(used) or "no codecs"


NO_CODECS = Codecs()
"""All messages are sent as they are."""


def bytes_per_value(codec: CodecKind, *, top_k_fraction: float = 0.01) -> float:
    """Return the bytes in which a codec sends a float32 value, in long messages.

    >>> [bytes_per_value(codec) for codec in (CodecKind.NONE, CodecKind.INT8)]
    [4.0, 1.015625]
    """
    return {
        CodecKind.NONE: 4.0,
        CodecKind.BF16: 2.0,
        CodecKind.INT8: 1 + 4 / BLOCK,
        CodecKind.FP8: 1 + 4 / BLOCK,
        CodecKind.INT4: 0.5 + 4 / INT4_BLOCK,
        CodecKind.ROTATED3: 3 / 8 + 2 / ROTATED_BLOCK,
        CodecKind.TOP_K: 8 * top_k_fraction,
    }[codec]


def coding_of(codec: CodecKind, rates: CodingRates) -> Coding:
    """Return the seconds that one core encodes and decodes a value, in long messages.

    Those of `rates`, which a profile has measured, or else figures of one core of an x86-64 server,
    of four million values (`experiments/codecs` measures them again, there on a faster core).

    >>> coding_of(CodecKind.NONE, {})
    Coding(encode_s=0.0, decode_s=0.0)
    >>> coding_of(CodecKind.INT8, {CodecKind.INT8: Coding(encode_s=1e-9, decode_s=1e-10)}).encode_s
    1e-09
    """
    return rates[codec] if codec in rates else _CODING[codec]


def _of_nanoseconds(encode: float, decode: float) -> Coding:
    return Coding(encode_s=encode * 1e-9, decode_s=decode * 1e-9)


_CODING: CodingRates = {
    CodecKind.NONE: NO_CODING,
    CodecKind.BF16: _of_nanoseconds(0.4, 0.2),
    CodecKind.INT8: _of_nanoseconds(2.7, 0.4),
    CodecKind.FP8: _of_nanoseconds(4.9, 1.8),
    CodecKind.INT4: _of_nanoseconds(6.1, 1.0),
    CodecKind.ROTATED3: _of_nanoseconds(7.5, 5.8),
    CodecKind.TOP_K: _of_nanoseconds(3.5, 0.2),
}
