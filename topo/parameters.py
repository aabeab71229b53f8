"""Parameters of a cluster file: its table `parameters` defines them, `"$name"` refers to them.

They can be set after the name or path of a cluster: `homogeneous:hosts=8,delay_ms=20`.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"

_BOOLS = {"true": True, "false": False}


def split_settings(text: str) -> tuple[str, dict[str, str]]:
    """Return the name or path, and the settings after its colon.

    >>> split_settings("aws:regions=ohio+tokyo,hosts=4")
    ('aws', {'regions': 'ohio+tokyo', 'hosts': '4'})
    >>> split_settings("laptop")
    ('laptop', {})
    """
    name, colon, rest = text.partition(":")
    parts = [part.partition("=") for part in rest.split(",")] if colon else []
    for key, equals, value in parts:
        if not (key and equals and value):
            raise ValueError(f"{rest!r} must be settings, for example `hosts=4,delay_ms=20`")
    return name, {key: value for key, _, value in parts}


def substitute(file: Mapping[str, Value], settings: Mapping[str, str]) -> dict[str, Value]:
    """Return the file without `parameters`, each `"$name"` in it replaced by the parameter.

    A setting has the type of its default: a number, a string, `true` or `false`, or a list
    (`ohio+tokyo`).

    >>> file = {"parameters": {"hosts": 2}, "hosts": [{"count": "$hosts"}]}
    >>> substitute(file, {}), substitute(file, {"hosts": "3"})
    ({'hosts': [{'count': 2}]}, {'hosts': [{'count': 3}]})

    Raises:
        ValueError: a setting names no parameter or has another type than its default, or a
            `"$name"` is not a parameter.
    """
    defaults = file.get("parameters", {})
    if not isinstance(defaults, Mapping):
        raise ValueError(f"`parameters` must be a table, not {defaults!r}")
    for key in settings:
        if key not in defaults:
            choices = ", ".join(defaults) or "none"
            raise ValueError(f"no parameter `{key}`: choose from {choices}")
    values = dict(defaults) | {key: _like(defaults[key], key, settings[key]) for key in settings}
    return {key: _replace(part, values) for key, part in file.items() if key != "parameters"}


def _like(default: Value, key: str, text: str) -> Value:
    # Before Sequence: a string is one, too.
    if isinstance(default, str):
        return text
    if isinstance(default, Sequence):
        return text.split("+")
    # Before int: a bool is one, too.
    if isinstance(default, bool):
        if text not in _BOOLS:
            raise ValueError(f"`{key}` must be true or false, not {text!r}")
        return _BOOLS[text]
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError:
        raise ValueError(f"`{key}` must be a number like {default!r}, not {text!r}") from None


def _replace(part: Value, values: Mapping[str, Value]) -> Value:
    if isinstance(part, str):
        if not part.startswith("$"):
            return part
        if part[1:] not in values:
            choices = ", ".join(values) or "none"
            raise ValueError(f"{part!r} must refer to one of the `parameters`: {choices}")
        # The whole string: parameters are values, never parts of a text.
        return values[part[1:]]
    if isinstance(part, Mapping):
        return {key: _replace(inner, values) for key, inner in part.items()}
    if isinstance(part, Sequence):
        return [_replace(inner, values) for inner in part]
    return part
