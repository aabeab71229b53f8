"""TOML of any tree, and values that no field was made for.

Wrong files: valid ones with a value, a key, a byte or the path itself gone wrong.

Each mutation takes a valid file, which it may change, and gives a `Broken` one. What is
`surely_wrong` has to be refused; of others, such as a batch of 3, the command decides.
"""

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Value: TypeAlias = "bool | int | float | str | date | list[Value] | dict[str, Value]"

_DEEP = 200


def awkward_values() -> tuple[Value, ...]:
    """Return values that are negative, huge, empty, not numbers, too long, too deep or odd."""
    deep: Value = []
    for _ in range(_DEEP):
        deep = [deep]
    return (
        *(-1, 0, 1, 3, 7, 2**31, 2**63, 10**30, -(10**30), 10**400),
        *(0.0, -0.5, 0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf),
        *("", " ", "x", "none", "1", "nan", "é\u202e\U0001f600", "a\nb", "\0", "$x", "x" * 10_000),
        *(True, False, date(2022, 11, 28)),
        *([], [[]], [0], [1, "a"], [-1, 2.5], {}, {"a": 1}, deep),
    )


def to_toml(tree: Mapping[str, Value]) -> str:
    """Return the text of a file.

    >>> print(to_toml({"name": "a", "run": {"seed": 1, "rates": [0.5, {"nan": float("nan")}]}}))
    "name" = "a"
    ["run"]
    "seed" = 1
    "rates" = [0.5, {"nan" = nan}]
    <BLANKLINE>
    """
    top = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [_pair(key, value) for key, value in top.items()]
    for name, section in tree.items():
        if isinstance(section, dict):
            lines += [f"[{_word(name)}]", *(_pair(key, value) for key, value in section.items())]
    return "\n".join(lines) + "\n"


def _pair(key: str, value: Value) -> str:
    return f"{_word(key)} = {_text(value)}"


def _text(value: Value) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(_pair(key, inner) for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, str):
        return _word(value)
    return value.isoformat() if isinstance(value, date) else str(value).lower()


def _word(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


Tree: TypeAlias = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A valid file: what is in it, and which `fields` each section may have; "" is the top."""

    tree: Tree
    fields: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A wrong file: its bytes, and what is wrong with it."""

    what: str
    data: bytes
    surely_wrong: bool = False


Mutation: TypeAlias = Callable[[File, Random], Broken]


def change_value(file: File, random: Random) -> Broken:
    """Give a field that is there a value that was not meant for it."""
    holder, key, where = random.choice(_places(file.tree))
    value = random.choice(awkward_values())
    is_number = isinstance(holder[key], int | float) and not isinstance(holder[key], bool)
    holder[key] = value
    is_nan = isinstance(value, float) and math.isnan(value)
    return _of(file.tree, f"{where} is {value!r:.40}", surely_wrong=is_number and is_nan)


def set_field(file: File, random: Random) -> Broken:
    """Give a known field, which may have been left out, such a value."""
    section = random.choice(sorted(file.fields))
    inner = _section(file.tree, section, random)
    key, value = random.choice(file.fields[section]), random.choice(awkward_values())
    inner[key] = value
    return _of(file.tree, f"{section}.{key} is {value!r:.40}")


def remove_key(file: File, random: Random) -> Broken:
    """Leave something out."""
    holder, key, where = random.choice(_places(file.tree))
    del holder[key]
    return _of(file.tree, f"{where} is missing")


def add_unknown(file: File, random: Random) -> Broken:
    """Add a field that nobody knows."""
    found = (holder[key] for holder, key, _ in _places(file.tree) if key != "parameters")
    holders = [file.tree, *(each for each in found if isinstance(each, dict))]
    key = random.choice(["x", "", "step", "Model", "a.b", "a b", "\u00fc", "0", "x" * 3000])
    random.choice(holders)[f"{key}?"] = random.choice(awkward_values())
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
    """Break the text of the file, with no regard to what it says."""
    text = to_toml(file.tree)
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
    """Put something in place of the text that is none."""
    text = to_toml(file.tree)
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
    """Return paths that no file can be read from, made in a folder."""
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
    """Break a copy of a file in one of the ways, by chance."""
    mutation = random.choice(MUTATIONS)
    return mutation(File(tree=copy.deepcopy(file.tree), fields=file.fields), random)


def _places(tree: Tree) -> list[tuple[Any, Any, str]]:
    """Return every field of a tree and every element of a list: where it is, and its name."""
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
    """Return a section, made where it is not there; of a list of them, one; "" is the file."""
    if not name:
        return tree
    section = tree.setdefault(name, {})
    if isinstance(section, list):
        section = random.choice(section)
    return section if isinstance(section, dict) else tree


def _of(tree: Tree, what: str, *, surely_wrong: bool = False) -> Broken:
    return Broken(what=what, data=to_toml(tree).encode(), surely_wrong=surely_wrong)
