"""The record of a codec: what planner, simulator and runtime know of it by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from jaxpipe.collective.codec.codec import Codec


class CodecLimit(StrEnum):
    """The codecs among which a plan's are chosen (`jaxpipe.propose.codec_choice`)."""

    NONE = "none"
    """No codecs: messages as they are."""
    SAFE = "safe"
    """Those that cost no loss in our measurements: bf16 and int8."""
    ANY = "any"
    """Also int4, rotated3, and top-k of gradients, which cost loss."""

    def includes(self, other: "CodecLimit") -> bool:
        """Return whether a codec of the other limit is among those of this one.

        >>> CodecLimit.SAFE.includes(CodecLimit.NONE), CodecLimit.SAFE.includes(CodecLimit.ANY)
        (True, False)
        """
        order = list(CodecLimit)
        return order.index(other) <= order.index(self)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecFacts:
    """The facts of a codec.

    `make` returns it, from `fraction` if it takes one; None sends messages as they are. `coding`
    has the seconds per value in long messages on one core of an x86-64 server, for plans without a
    profile. `limit` is the strictest limit within which a search considers it; None for one that is
    never faster than another.
    """

    make: Callable[..., Codec] | None
    coding: Coding
    limit: CodecLimit | None
    needs_feedback: bool = False
    """It drops values, and so is for gradients alone, whose errors the next step adds."""
    takes_fraction: bool = False
