"""Presets: one TOML file each in `presets/`, with the fields of a model's configuration."""

import difflib
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def presets() -> list[str]:
    """Return the names of all presets, sorted.

    >>> "gpt2-medium" in presets()
    True
    """
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Return the fields that a preset sets; all others keep their defaults.

    Raises:
        ValueError: there is no preset of this name.

    >>> load_preset("tiny")["vocabulary"]
    256
    """
    choices = presets()
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0)[0]
        raise ValueError(
            f"`preset` must be a known name, not {name!r}; the nearest is {nearest!r}, "
            f"the choices are {', '.join(choices)}"
        )
    # A listed name: no path leaves the folder.
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def _folder() -> Traversable:
    return files("jaxpipe.models") / "presets"
