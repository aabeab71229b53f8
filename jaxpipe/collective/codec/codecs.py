"""The codecs of a run, and the bytes and seconds per value of each, for planners and simulators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxpipe.collective.codec.codec import Codec
from jaxpipe.collective.codec.codec_facts import CodecLimit, Coding
from jaxpipe.collective.kinds import CodecKind

_LONG = 2**40
"""Values of a message that is long enough for its bytes per value; a power of two, of blocks."""

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


def codec_of(kind: CodecKind, *, top_k_fraction: float = 0.01) -> Codec | None:
    """Return the codec of a kind, None for `none`; `top_k` keeps `top_k_fraction` of all values.

    >>> codec_of(CodecKind.TOP_K, top_k_fraction=0.1)
    TopKCodec(fraction=0.1)
    """
    facts = kind.facts
    if facts.make is None:
        return None
    return facts.make(fraction=top_k_fraction) if facts.takes_fraction else facts.make()


def bytes_per_value(kind: CodecKind, *, top_k_fraction: float = 0.01) -> float:
    """Return the bytes in which a codec sends a float32 value, in long messages.

    >>> [bytes_per_value(codec) for codec in (CodecKind.NONE, CodecKind.INT8)]
    [4.0, 1.015625]
    """
    codec = codec_of(kind, top_k_fraction=top_k_fraction)
    return 4.0 if codec is None else codec.num_bytes(size=_LONG) / _LONG


def coding_of(kind: CodecKind, rates: CodingRates) -> Coding:
    """Return the seconds that one core encodes and decodes a value, in long messages.

    Those of `rates`, which a profile has measured, or else those of its facts: of one core of an
    x86-64 server, of four million values (`experiments/codecs` measures them again, there on a
    faster core).

    >>> coding_of(CodecKind.NONE, {})
    Coding(encode_s=0.0, decode_s=0.0)
    >>> coding_of(CodecKind.INT8, {CodecKind.INT8: Coding(encode_s=1e-9, decode_s=1e-10)}).encode_s
    1e-09
    """
    return rates.get(kind, kind.facts.coding)


def codecs_within(limit: CodecLimit, *, for_gradients: bool) -> Sequence[CodecKind]:
    """Return the codecs that a search considers within a limit, the gentlest first.

    The farther, the fewer bytes. Between stages there is no error feedback: a value that a codec
    drops is lost, so those that need it are for gradients alone.

    >>> [str(codec) for codec in codecs_within(CodecLimit.SAFE, for_gradients=False)]
    ['none', 'bf16', 'int8']
    """
    kinds = (
        kind
        for kind in CodecKind
        if kind.facts.limit is not None
        and limit.includes(kind.facts.limit)
        and (for_gradients or not kind.facts.needs_feedback)
    )
    return sorted(kinds, key=bytes_per_value, reverse=True)
