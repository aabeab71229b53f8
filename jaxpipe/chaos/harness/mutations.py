"""Mutations of valid files: a wrong value, key, byte or path.

Each mutation takes a valid file, which it may change, and returns a `Broken` one. A file that is
`surely_wrong` must be refused; for others, such as a batch of 3, the command decides.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from jaxpipe.topo.toml_text import toml_text

Value: TypeAlias = "bool | int | float | str | date | list[Value] | dict[str, Value]"

_DEEP = 200


def awkward_values() -> tuple[Value, ...]:
    """Return values that are negative, huge, empty, not numbers, too long, too deep or odd."""
    deep: Value = []
    for _ in range(_DEEP):
        deep = [deep]
    return (
        # 2**63 is no TOML integer, 10**400 no float.
        *(-1, 0, 1, 3, 7, 2**31, 2**63, 10**30, -(10**30), 10**400),
        *(0.0, -0.5, 0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf),
        *("", " ", "x", "none", "1", "nan", "é\u202e\U0001f600", "a\nb", "\0", "$x", "x" * 10_000),
        *(True, False, date(2022, 11, 28)),
        *([], [[]], [0], [1, "a"], [-1, 2.5], {}, {"a": 1}, deep),
    )


Tree: TypeAlias = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A valid file: its content, and the `fields` that each section may have; "" is the top."""

    tree: Tree
    fields: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A wrong file: its bytes, and its fault."""

    what: str
    data: bytes
    surely_wrong: bool = False


Mutation: TypeAlias = Callable[[File, Random], Broken]


def change_value(file: File, random: Random) -> Broken:
    """Give a field of the file an unsuitable value."""
    holder, key, where = random.choice(_places(file.tree))
    value = random.choice(awkward_values())
    is_number = isinstance(holder[key], int | float) and not isinstance(holder[key], bool)
    holder[key] = value
    is_nan = isinstance(value, float) and math.isnan(value)
    return _of(file.tree, f"{where} is {value!r:.40}", surely_wrong=is_number and is_nan)


def set_field(file: File, random: Random) -> Broken:
    """Give any known field an unsuitable value."""
    section = random.choice(sorted(file.fields))
    inner = _section(file.tree, section, random)
    key, value = random.choice(file.fields[section]), random.choice(awkward_values())
    inner[key] = value
    return _of(file.tree, f"{section}.{key} is {value!r:.40}")


def remove_key(file: File, random: Random) -> Broken:
    """Remove a key."""
    holder, key, where = random.choice(_places(file.tree))
    del holder[key]
    return _of(file.tree, f"{where} is missing")


def add_unknown(file: File, random: Random) -> Broken:
    """Add an unknown field."""
    found = (holder[key] for holder, key, _ in _places(file.tree) if key != "parameters")
    holders = [file.tree, *(each for each in found if isinstance(each, dict))]
    key = random.choice(["x", "", "step", "Model", "a.b", "a b", "\u00fc", "0", "x" * 3000])
    random.choice(holders)[f"{key}?"] = random.choice(awkward_values())  # no field ends in "?"
    return _of(file.tree, f"unknown key {key!r:.20}", surely_wrong=True)


def misspell(file: File, random: Random) -> Broken:
    """Rename a field."""
    holder, key, where = random.choice([p for p in _places(file.tree) if isinstance(p[1], str)])
    holder[f"{key}_"] = holder.pop(key)
    return _of(file.tree, f"{where} is misspelled")


def exchange(file: File, random: Random) -> Broken:
    """Exchange the values of two fields."""
    places = [p for p in _places(file.tree) if not isinstance(p[0][p[1]], dict | list)]
    (one, a, here), (other, b, there) = random.sample(places, 2)
    one[a], other[b] = other[b], one[a]
    return _of(file.tree, f"{here} and {there} are exchanged")


def break_text(file: File, random: Random) -> Broken:
    """Break the text of the file at random."""
    text = toml_text(file.tree)
    at, other = sorted((random.randrange(len(text)), random.randrange(len(text))))
    char = random.choice("[]{}\"'=#.,\\\0\n\x1b é0-")
    line = random.choice(text.splitlines())
    what, broken = random.choice(
        [
            (f"character {at} is gone", text[:at] + text[at + 1 :]),
            (f"{char!r} at {at}", text[:at] + char + text[at:]),
            (f"cut off at {at}", text[:at]),
            (f"characters {at} to {other} are gone", text[:at] + text[other:]),
            (f"a line is there twice: {line.split('=')[0]:.30}", f"{text}\n{line}\n{line}\n"),
            ("the file is there twice", text + text),
        ]
    )
    return Broken(what=what, data=broken.encode())


def break_bytes(file: File, random: Random) -> Broken:
    """Replace the text by bytes that are not TOML text."""
    text = toml_text(file.tree)
    at = random.randrange(len(text))
    depth = random.choice([50, 5_000, 200_000])
    what, data = random.choice(
        [
            ("empty", b""),
            ("blank", b"\n \n"),
            ("random bytes", random.randbytes(random.choice([1, 100, 100_000]))),
            ("UTF-16", text.encode("utf-16")),
            ("Latin-1", f'{text}\n# \u00e9\n"\u00e9" = 1'.encode("latin-1")),
            ("half a character", text[:at].encode() + b"\xe2\x82" + text[at:].encode()),
            (f"{depth} brackets", b"x = " + b"[" * depth),
            (f"{depth} nested lists", b"x = " + b"[" * depth + b"]" * depth),
            (f"{depth} nested tables", b"x = " + b"{a=" * depth + b"1" + b"}" * depth),
            (f"{depth} dots", b"a" + b".a" * depth + b" = 1"),
            (f"a number of {depth} digits", b"x = " + b"9" * depth),
        ]
    )
    return Broken(what=what, data=data, surely_wrong=True)


MUTATIONS: tuple[Mutation, ...] = (
    *(change_value,) * 4,
    *(set_field,) * 4,
    *(remove_key, add_unknown, misspell, exchange, break_text, break_text, break_bytes),
)


def odd_paths(folder: Path) -> tuple[str, ...]:
    """Return paths that cannot be read, created in a folder."""
    (folder / "loop.toml").symlink_to(folder / "loop.toml")
    (folder / "dangling.toml").symlink_to(folder / "nowhere")
    (folder / "folder.toml").mkdir()
    return (
        str(folder),
        str(folder / "folder.toml"),
        str(folder / "missing.toml"),
        str(folder / "loop.toml"),
        str(folder / "dangling.toml"),
        str(folder / "missing" / "file.toml"),
        str(folder / ("x" * 300)),
        str(folder / "\udcff.toml"),
        "/proc/self/mem",
        "/dev/null",
        ".",
        "",
        "\n",
    )


def mutate(file: File, random: Random) -> Broken:
    """Apply a random mutation to a copy of a file."""
    mutation = random.choice(MUTATIONS)
    return mutation(File(tree=copy.deepcopy(file.tree), fields=file.fields), random)


def _places(tree: Tree) -> list[tuple[Any, Any, str]]:
    """Return every field of a tree and every element of a list: its holder, key and name."""
    found: list[tuple[Any, Any, str]] = []
    _collect(tree, "", found)
    return found


def _collect(value: Value, name: str, found: list[tuple[Any, Any, str]]) -> None:
    if isinstance(value, dict):
        entries: list[tuple[Any, Value, str]] = [
            (key, inner, f"{name}.{key}".removeprefix(".")) for key, inner in value.items()
        ]
    elif isinstance(value, list):
        entries = [(index, inner, f"{name}[{index}]") for index, inner in enumerate(value)]
    else:
        return
    for key, inner, inner_name in entries:
        found.append((value, key, inner_name))
        _collect(inner, inner_name, found)


def _section(tree: Tree, name: str, random: Random) -> dict[str, Value]:
    """Return a section, created if missing; one of a list of them; "" is the file."""
    if not name:
        return tree
    section = tree.setdefault(name, {})
    if isinstance(section, list):
        section = random.choice(section)
    return section if isinstance(section, dict) else tree


def _of(tree: Tree, what: str, *, surely_wrong: bool = False) -> Broken:
    return Broken(what=what, data=toml_text(tree).encode(), surely_wrong=surely_wrong)
