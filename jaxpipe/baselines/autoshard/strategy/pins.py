"""Pins: shardings that the user fixes; the search decides the others.

In TOML, or the same in JSON::

    [arguments]
    "params.blocks.*.mlp.up.kernel" = "RS1"     # a star stands for any text
    [operators]
    117 = "S0R"                                 # of the first result of equation 117
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxpipe.baselines.autoshard.strategy.sharding import Sharding, parse_sharding
from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import parse_json, read_text, reason_of
from jaxpipe.topo.toml_text import parse_toml

_MOST_BYTES = 2**26


def _no_arguments() -> Mapping[str, Sharding]:
    return MappingProxyType({})


def _no_operators() -> Mapping[int, Sharding]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Fixed shardings of arguments, by path or pattern, and of operators' first results.

    If several patterns match a path, the last one wins.

    >>> pins = Pins(arguments={"params.*": parse_sharding("RR"),
    ...                        "params.*.up": parse_sharding("RS1")})
    >>> str(pins.argument("params.0.up")), str(pins.argument("params.0.down"))
    ('RS1', 'RR')
    """

    arguments: Mapping[str, Sharding] = field(default_factory=_no_arguments)
    operators: Mapping[int, Sharding] = field(default_factory=_no_operators)

    def argument(self, path: str) -> Sharding | None:
        """Return the pinned sharding of an argument, or None."""
        pinned = None
        for pattern, sharding in self.arguments.items():
            # Equality first: in a pattern, "[" would start a set of characters.
            if pattern == path or fnmatchcase(path, pattern):
                pinned = sharding
        return pinned

    def __or__(self, other: "Pins") -> "Pins":
        """Return the union; `other` wins conflicts."""
        return Pins(
            arguments={**self.arguments, **other.arguments},
            operators={**self.operators, **other.operators},
        )


def read_pins(path: Path) -> Pins:
    """Return the pins of a TOML or JSON file.

    Raises:
        PlanError: the file cannot be read, or does not contain pins.
    """
    try:
        text = read_text(path, most_bytes=_MOST_BYTES)
        tree = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise PlanError(f"cannot read the pins {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise PlanError(f"{path} is neither TOML nor JSON: {error}") from error
    return pins_from(tree)


def pins_from(tree: Any) -> Pins:
    """Return the pins that nested dictionaries describe.

    >>> str(pins_from({"operators": {"3": "S0R"}}).operators[3])
    'S0R'

    Raises:
        PlanError: a key or a value is wrong.
    """
    if not isinstance(tree, Mapping):
        raise PlanError(
            f"`arguments` or `operators` must be among the pins, not {tree!r:.80}; add one of them"
        )
    for key in tree:
        if key not in ("arguments", "operators"):
            raise PlanError(
                f"`{key!s:.80}` is unknown among pins: choose from arguments, operators"
            )
    arguments, operators = _table(tree, "arguments"), _table(tree, "operators")
    for number in operators:
        # Bounded: Python refuses to convert 4,300 digits.
        if not str(number).isdecimal() or len(str(number)) > 9:
            raise PlanError(
                f"`operators` are named by their equations' indices, not {str(number)[:40]!r}; "
                "look one up in a printed strategy"
            )
    return Pins(
        arguments={path: _parsed(f"arguments.{path}", text) for path, text in arguments.items()},
        operators={int(n): _parsed(f"operators.{n}", text) for n, text in operators.items()},
    )


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tree.get(name, {})
    if not isinstance(table, Mapping):
        raise PlanError(
            f"`{name}` must be a table of shardings, is {table!r:.80}; write [{name}], and a line "
            "for each"
        )
    return table


def _parsed(field_name: str, text: Any) -> Sharding:
    if not isinstance(text, str):
        raise PlanError(f"`{field_name}` must be a text such as 'S0R', is {text!r}; quote it")
    try:
        return parse_sharding(text)
    except PlanError as error:
        raise PlanError(f"`{field_name}`: {error}") from error
