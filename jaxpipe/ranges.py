"""The range of a number in the configuration: stated once, beside its field.

A section annotates its fields, and checks all of them at once:

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True)
... class Section:
...     steps: Annotated[int, Range(least=1)] = 100
...     fraction: Annotated[float | None, Range(above=0, most=1)] = None
...     def __post_init__(self) -> None:
...         check_ranges(self)
>>> Section(fraction=1.5)
Traceback (most recent call last):
ValueError: `fraction` must be above 0 and at most 1, not 1.5

The documentation prints the ranges from the same annotations.
"""

from dataclasses import dataclass, fields
from functools import cache
from math import inf
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The limits of a number: one below, `least` or `above`, and perhaps `most` or `below`."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    why: str = ""
    """The reason of an upper limit that is not obvious, for the error and the documentation."""

    def __contains__(self, value: float) -> bool:
        """Return whether a number is inside; infinity and NaN never are."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and value < (inf if self.below is None else self.below)
        )

    def is_reached(self, value: float) -> bool:
        """Return whether the lower limit is not what a number breaks."""
        least = -inf if self.least is None else self.least
        return value >= least and (self.above is None or value > self.above)

    def __str__(self) -> str:
        """Return the limits in words.

        >>> str(Range(least=0, below=1)), str(Range(least=0, most=5)), str(Range(above=0))
        ('from 0 to below 1', 'from 0 to 5', 'above 0')
        """
        lower = f"above {self.above:.10g}" if self.least is None else f"at least {self.least:.10g}"
        if self.most is None and self.below is None:
            return lower
        upper = f"at most {self.most:.10g}" if self.below is None else f"below {self.below:.10g}"
        if self.least is None:
            return f"{lower} and {upper}"
        return f"from {self.least:.10g} to {upper.removeprefix('at most ')}"


@cache
def ranges_of(section: type) -> dict[str, Range]:
    """Return the ranges of the fields of a dataclass, by name."""
    return {
        name: mark
        for name, hint in get_type_hints(section, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Range)
    }


def check_ranges(section: Any) -> None:
    """Check that each field of a dataclass is in its range; None is a field that is not set.

    Raises:
        ValueError: one is not. It names the field, the range and the value.
    """
    ranges = ranges_of(type(section))
    for field in fields(section):
        value, limits = getattr(section, field.name), ranges.get(field.name)
        if limits is None or value is None or value in limits:
            continue
        shown = f"{limits} and finite" if value == inf else f"{limits}"
        why = f": {limits.why}" if limits.why and limits.is_reached(value) else ""
        raise ValueError(f"`{field.name}` must be {shown}, not {value}{why}")
