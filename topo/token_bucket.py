"""Token bucket: what `tc` limits an interface with, by a rate and what may go at once.

::

    silence ── burst at line rate ── rate ...     in any interval at most rate x time + burst

Rates, sizes and times are written as tc writes them: `gbit` is 1e9 bits a second and `gibit` 2^30,
`m` is 2^20 bytes. Sources: tc(8), units; tc-tbf(8).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxpipe.topo.units import ms_from_seconds

_PACKET_BYTES = 1514
"""Of Ethernet, with its header."""
_LARGE = {"k": 1, "m": 2, "g": 3, "t": 4}
_RATES = MappingProxyType(
    {"bit": 1 / 8, "bps": 1.0}
    | {f"{letter}bit": 1e3**power / 8 for letter, power in _LARGE.items()}
    | {f"{letter}ibit": 1024.0**power / 8 for letter, power in _LARGE.items()}
)
_SIZES = MappingProxyType(
    {"": 1.0, "b": 1.0}
    | {name: 1024.0**power for letter, power in _LARGE.items() for name in (letter, f"{letter}b")}
)
_TIMES = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6})
_WORD = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([a-z]{0,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """The limit of an interface; a packet that would wait longer than `latency_s` is dropped.

    By default a millisecond of traffic may go at once, but at least one packet of segmentation
    offload (64 KiB), and packets wait up to 0.2 s.
    """

    bytes_per_s: float
    burst_bytes: float | None = None
    latency_s: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.bytes_per_s <= 1e18:
            raise ValueError(
                f"`rate` must be from 8 bit/s to 8e18 bit/s, is {self.bytes_per_s * 8:g}"
            )
        if self.burst_bytes is not None and not _PACKET_BYTES <= self.burst_bytes < 2**32:
            raise ValueError(
                f"`burst` must be from {_PACKET_BYTES} bytes, a packet, without which nothing "
                f"passes, to below 4 GiB, which tc counts in 32 bits, is {self.burst_bytes:g}"
            )
        if not 1e-6 <= self.latency_s <= 3600:
            raise ValueError(f"`latency` must be from 1 us to an hour, is {self.latency_s:g} s")

    @property
    def bytes_at_once(self) -> float:
        """What goes at once after a silence."""
        return self.burst_bytes or max(2**16, self.bytes_per_s / 1e3)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of tc's tbf.

        >>> " ".join(TokenBucket(bytes_per_s=2.5e9).words)
        'tbf rate 20000000000bit burst 2500000 latency 200ms'
        """
        # Without an exponent, which tc does not read.
        latency = f"{ms_from_seconds(self.latency_s):.3f}".rstrip("0").rstrip(".") + "ms"
        # tc's rates are in bits, its bursts in bytes.
        rate = f"{round(8 * self.bytes_per_s)}bit"
        return ("tbf", "rate", rate, "burst", str(round(self.bytes_at_once)), "latency", latency)


def parse_rate(text: str) -> float:
    """Return the bytes/s of a rate of tc.

    >>> 8 * parse_rate("30gibit") == 30 * 2**30, 8 * parse_rate("1.12gbit")
    (True, 1120000000.0)

    Raises:
        ValueError: it is none.
    """
    return _parsed(text, _RATES, name="rate", example="30gibit")


def parse_size(text: str) -> float:
    """Return the bytes of a size of tc.

    >>> parse_size("60m") == 60 * 2**20
    True

    Raises:
        ValueError: it is none.
    """
    return _parsed(text, _SIZES, name="burst", example="60m")


def parse_time(text: str) -> float:
    """Return the seconds of a time of tc.

    >>> parse_time("60ms")
    0.06

    Raises:
        ValueError: it is none.
    """
    return _parsed(text, _TIMES, name="latency", example="60ms")


def _parsed(text: str, units: Mapping[str, float], *, name: str, example: str) -> float:
    matched = _WORD.fullmatch(text.strip().lower())
    if matched is None or matched[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(
            f"`{name}` must be a number and one of {known}, such as {example}, not {text!r:.40}"
        )
    return float(matched[1]) * units[matched[2]]
