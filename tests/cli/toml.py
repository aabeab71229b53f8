"""TOML of nested dictionaries: enough for configurations."""

import json
from typing import Any


def to_toml(tree: dict[str, dict[str, Any]]) -> str:
    """Return the text; strings, numbers, booleans and lists look the same in JSON.

    >>> print(to_toml({"run": {"folder": "a", "seed": 1}}))
    [run]
    folder = "a"
    seed = 1
    """
    lines = []
    for section, values in tree.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines)
