"""TOML of any tree, and values that no field was made for."""

import json
import math
from collections.abc import Mapping
from datetime import date
from typing import TypeAlias

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
