"""The range of a field: what is inside is accepted, what is outside is named with its limits."""

from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.config import Config
from jaxpipe.ranges import Range, check_ranges, ranges_of

SECTIONS = [
    section
    for field in fields(Config)
    for section in (get_args(field.type) or (field.type,))
    if ranges_of(section)
]


@dataclass(frozen=True)
class Section:
    """A number of each kind."""

    count: Annotated[int, Range(least=1, most=9, why="a reason")] = 1
    rate: Annotated[float | None, Range(above=0, below=1)] = None
    free: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


@given(st.integers(), st.floats() | st.none())
def test_a_section_is_made_of_what_is_in_range(count: int, rate: float | None) -> None:
    is_right = 1 <= count <= 9 and (rate is None or 0 < rate < 1)
    if is_right:
        assert Section(count=count, rate=rate).count == count
    else:
        with pytest.raises(ValueError, match=r"^`(count|rate)` must be (from 1 to 9|above 0)"):
            Section(count=count, rate=rate)


def test_an_error_has_the_range_the_value_and_the_reason() -> None:
    with pytest.raises(ValueError, match=r"^`count` must be from 1 to 9, not 10: a reason$"):
        Section(count=10)
    assert inf not in Range(least=0)
    with pytest.raises(ValueError, match=r"^`count` must be from 1 to 9, not 0$"):
        Section(count=0)


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_are_in_range(section: Any) -> None:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(section)}
    for name, limits in ranges_of(section).items():
        assert defaults[name] is None or defaults[name] in limits, name
