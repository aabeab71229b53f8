"""Units of a picture: one for all values of an axis or panel, so that no number has an exponent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit by its name, and its size in the SI unit of the code."""

    name: str
    size: float


SECONDS = (Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0))
BYTES = (Unit("B", 1.0), Unit("KiB", 2.0**10), Unit("MiB", 2.0**20), Unit("GiB", 2.0**30))
BANDWIDTHS = (Unit("kbit/s", 1e3 / 8), Unit("Mbit/s", 1e6 / 8), Unit("Gbit/s", 1e9 / 8))
"""In bytes per second."""


def unit_for(values: Iterable[float], units: Sequence[Unit]) -> Unit:
    """Return the largest unit of which the largest value is at least one; units ascend.

    >>> unit_for([0.002, 0.35], SECONDS).name, unit_for([], BYTES).name
    ('ms', 'B')
    """
    largest = max((abs(value) for value in values if isfinite(value)), default=0.0)
    fitting = [unit for unit in units if largest >= unit.size]
    return fitting[-1] if fitting else units[0]


def time_unit(seconds: Iterable[float]) -> Unit:
    """Return seconds, ms or µs, for these seconds."""
    return unit_for(seconds, SECONDS)


def plain_number(value: float, *, digits: int = 3) -> str:
    """Return a number with this many significant digits, or its whole part; never an exponent.

    >>> [plain_number(each) for each in (1234.5, 0.04217, 12.0, 0.0, 99.96)]
    ['1,234', '0.0422', '12', '0', '100']
    """
    if not isfinite(value):
        return "∞" if value > 0 else str(value)
    if value == 0:
        return "0"
    # Rounded first: 99.96 has another place before its point than 100.
    value = round(value, max(0, digits - 1 - floor(log10(abs(value)))))
    places = max(0, digits - 1 - floor(log10(abs(value)))) if value else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
