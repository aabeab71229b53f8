"""The tables of fields: every field documented, every default that of the code."""

import dataclasses
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

import pytest

from docs.tools.fields import choice_table, choices_of, field_list, fields_of, forms_of
from docs.tools.source import DocumentationError, attribute_docs
from jaxpipe.config import Config

SECTIONS: dict[str, Any] = {
    f"{each.name}: {form.__name__}": form
    for each in dataclasses.fields(Config)
    for form in forms_of(each.type)
}


@dataclass(frozen=True)
class Documented:
    """A section.

    Args:
        named: documented here [steps].
    """

    named: int
    wait_s: float = 1.5
    """Documented below [s]."""
    limit: float = inf
    """No unit [0, 1)."""


@dataclass(frozen=True)
class Undocumented:
    """A section."""

    silent: int = 0


@dataclass(frozen=True)
class WithoutUnit:
    """A section."""

    wait_s: float = 1.0
    """A wait."""


class Color(StrEnum):
    """A choice."""

    RED = "red"
    """Like fire."""
    BLUE = "blue"


def test_a_field_is_documented_below_it_or_by_its_class():
    named, wait, limit = fields_of(Documented)
    assert (named.meaning, named.unit, named.default) == ("Documented here.", "steps", "required")
    assert (wait.meaning, wait.unit, wait.default) == ("Documented below.", "s", "`1.5`")
    assert (limit.meaning, limit.unit, limit.default) == ("No unit [0, 1).", "", "no limit")


def test_a_field_without_a_docstring_fails_the_build():
    with pytest.raises(DocumentationError, match=r"Undocumented\.silent has no docstring"):
        field_list(Undocumented)


def test_a_field_whose_name_has_a_unit_states_it():
    with pytest.raises(DocumentationError, match=r"WithoutUnit\.wait_s is in \[s\]"):
        field_list(WithoutUnit)


def test_a_choice_without_a_docstring_fails_the_build():
    with pytest.raises(DocumentationError, match=r"Color\.BLUE has no docstring"):
        choice_table(Color)


def test_bases_are_documented_too():
    class Sub(Documented):
        """A subclass."""

    assert attribute_docs(Sub)["wait_s"] == "Documented below [s]."


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_of_the_configuration_is_in_the_table_with_its_default(name: str):
    shown = {each.name: each.default for each in fields_of(SECTIONS[name])}
    for field in dataclasses.fields(SECTIONS[name]):
        default = shown[field.name]
        if field.default is dataclasses.MISSING:
            assert default == "required"
        elif field.default is None:
            assert not default
        else:
            (parsed,) = tomllib.loads(f"value = {default.strip('`')}").values()
            expected = list(field.default) if isinstance(field.default, tuple) else field.default
            assert parsed == expected


@pytest.mark.parametrize("name", SECTIONS)
def test_every_value_of_a_choice_is_documented(name: str):
    for choices in choices_of(SECTIONS[name]):
        listed = choice_table(choices)
        assert [each for each in choices if f"`{each}`" not in listed] == []
