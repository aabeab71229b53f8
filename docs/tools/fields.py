"""Lists of configuration fields, from the dataclasses that define them."""

import dataclasses
import re
import types
from collections.abc import Iterable
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from docs.tools.source import DocumentationError, attribute_docs, summary
from jaxpipe.models import ModelConfig
from jaxpipe.models.catalogue import FAMILIES
from jaxpipe.ranges import Range, ranges_of

_SI: Final = frozenset({"s", "ms", "bytes", "bytes/s", "Gbit/s", "TFLOP/s"})
_COUNTED: Final = frozenset({"samples", "tokens", "steps", "batches", "layers", "heads"})
_RANKS: Final = frozenset({"stages", "replicas", "microbatches", "devices"})
UNITS: Final = _SI | _COUNTED | _RANKS
_UNIT = re.compile(r" \[([^\]]+)\]")
_SUFFIX_UNITS: Final = {"_s": "s", "_ms": "ms", "_bytes": "bytes", "_gbps": "Gbit/s"}
_NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One entry of a list of fields."""

    name: str
    type: str
    unit: str
    default: str
    meaning: str
    range: str = ""
    """Of a number, in words."""


def forms_of(section: Any) -> tuple[Any, ...]:
    """Return the dataclasses of a section: one, or one for each family of models.

    >>> [form.__name__ for form in forms_of(ModelConfig)], forms_of(int)
    (['GptConfig', 'LlamaConfig'], (<class 'int'>,))
    """
    return tuple(f.config for f in FAMILIES) if section is ModelConfig else (section,)


def fields_of(section: type) -> tuple[Field, ...]:
    """Return the fields of a dataclass, in order.

    Raises:
        DocumentationError: a field has no docstring, or its name has a unit that its docstring
            does not state.
    """
    docs, hints, ranges = attribute_docs(section), get_type_hints(section), ranges_of(section)
    fields = []
    for field in dataclasses.fields(section):
        where = f"{section.__module__}.{section.__qualname__}.{field.name}"
        if not docs.get(field.name):
            raise DocumentationError(f"{where} has no docstring; write one below the field")
        meaning, unit = _split_unit(docs[field.name])
        _check_unit(where, field.name, unit)
        fields.append(
            Field(
                field.name,
                type_name(hints[field.name]),
                unit,
                _default(field),
                _sentence(meaning) + _reason(ranges.get(field.name)),
                range=str(ranges.get(field.name, "")),
            )
        )
    return tuple(fields)


def _reason(limits: Range | None) -> str:
    """Return why a field has its range, where that is not obvious."""
    return f" Its range: {limits.why}." if limits is not None and limits.why else ""


def field_list(section: type) -> str:
    """Return the fields of a dataclass as a Markdown definition list."""
    return definitions(
        (
            f"`{f.name}`",
            facts(f.type, unit=f.unit, default=f.default or "optional", range_=f.range),
            f.meaning,
        )
        for f in fields_of(section)
    )


def facts(type_shown: str, *, unit: str = "", default: str = "", range_: str = "") -> str:
    """Return what is fixed about a field or an argument, for the line of its name.

    >>> facts("number", unit="s", default="`1.5`")
    'number [s], default `1.5`'
    >>> facts("integer", range_="at least 1", default="`1`")
    'integer at least 1, default `1`'
    >>> facts("string", default="required"), facts("flag")
    ('string, required', 'flag')
    """
    parts = [" ".join(filter(None, (type_shown, range_, f"[{unit}]" if unit else "")))]
    if default:
        parts.append(f"default {default}" if default.startswith("`") else default)
    return ", ".join(parts)


def definitions(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a Markdown definition list: name and facts on one line, the meaning below.

    A narrow window cuts a table of five columns; it wraps these lines.

    >>> print(definitions([("`seed`", "integer, default `0`", "The seed.")]))
    `seed` integer, default `0`
    :   The seed.
    """
    return "\n\n".join(
        f"{' '.join(f'{name} {fixed}'.split())}\n:   {' '.join(meaning.split())}"
        for name, fixed, meaning in entries
    )


def choices_of(section: type) -> tuple[type[StrEnum], ...]:
    """Return the enumerations that the fields of a dataclass choose from, in order."""
    choices = [
        part
        for hint in get_type_hints(section).values()
        for part in (hint, *get_args(hint))
        if isinstance(part, type) and issubclass(part, StrEnum)
    ]
    return tuple(dict.fromkeys(choices))


def choice_table(choices: type[StrEnum]) -> str:
    """Return the values of an enumeration and their meanings.

    Raises:
        DocumentationError: a value is documented neither below it nor in a table of the class.
    """
    docs, drawn = attribute_docs(choices), summary(choices)
    missing = [choice for choice in choices if not docs.get(choice.name)]
    if not missing:
        return table(
            ("value", "meaning"), [(f"`{choice}`", docs[choice.name]) for choice in choices]
        )
    for choice in missing:
        if not re.search(rf"^{choice} ", drawn, re.MULTILINE):
            raise DocumentationError(f"{choices.__qualname__}.{choice.name} has no docstring")
    lines = [line for line in drawn.splitlines()[1:] if line and not line.startswith("====")]
    return table(("value", "meaning"), [_choice_row(line) for line in lines])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = list(head)
    cells = [head, ["---"] * len(head), *([_cell(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def type_name(hint: Any) -> str:
    """Return a type as a reader of TOML or of a command line knows it.

    >>> type_name(tuple[int, ...] | None)
    'list of integers'
    """
    origin, arguments = get_origin(hint), [a for a in get_args(hint) if a is not type(None)]
    if origin in (types.UnionType, Union):
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        inner = type_name(arguments[0])
        is_plain = inner in (*_NAMES.values(), "table")
        return f"list of {inner}s" if is_plain else inner.replace("one", "list", 1)
    if origin is None and isinstance(hint, type) and issubclass(hint, StrEnum):
        return "one of " + ", ".join(f"`{choice}`" for choice in hint)
    if dataclasses.is_dataclass(hint):
        return "table"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def literal(value: Any) -> str:
    """Return a default as TOML writes it.

    >>> literal(2.0**16), literal((1, 2)), literal(True)
    ('65536', '[1, 2]', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "its defaults"
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None:
        return ""
    return "no limit" if field.default == inf else f"`{literal(field.default)}`"


def _split_unit(text: str) -> tuple[str, str]:
    units = [unit for unit in _UNIT.findall(text) if unit in UNITS]
    return (text.replace(f" [{units[0]}]", "", 1), units[0]) if units else (text, "")


def _check_unit(where: str, name: str, unit: str) -> None:
    for suffix, expected in _SUFFIX_UNITS.items():
        if name.endswith(suffix) and not name.endswith("_per_s") and unit != expected:
            raise DocumentationError(f"{where} is in [{expected}]; its docstring says {unit!r}")


def _choice_row(line: str) -> tuple[str, str]:
    value, _, meaning = line.partition(" ")
    return f"`{value}`", re.sub(r"\s{2,}", "; ", meaning.strip())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
