"""Fields of a `config.json`, read with one error each: the name, the value, what is possible."""

import math
from collections.abc import Mapping
from typing import Any

from jaxpipe.errors import ConfigError


def check_choice(fields: Mapping[str, Any], name: str, values: tuple[Any, ...]) -> None:
    """Check that a field has one of the supported values; a missing one has the first.

    Raises:
        ConfigError: it has another.
    """
    value = fields.get(name, values[0])
    if value not in values:
        choices = " or ".join(map(repr, values))
        raise ConfigError(
            f"`{name}` in `config.json` is {value!r:.80}, and jaxpipe computes only {choices}; "
            "such a model cannot be imported"
        )


def size_of(fields: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """Return a whole number; of a field that is missing or null the default.

    Raises:
        ConfigError: it is something else, or missing without a default.
    """
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"`{name}` in `config.json` must be a whole number, not {value!r:.80}")
    return value


def number_of(
    fields: Mapping[str, Any], name: str, *, default: float | None = None, null: float | None = None
) -> float:
    """Return a finite number; of a missing field the default, of a null one `null`, if given.

    Raises:
        ConfigError: it is something else, or missing without a default.
    """
    value = fields.get(name, default)
    if value is None:
        value = default if null is None else null
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not math.isfinite(value):
        raise ConfigError(f"`{name}` in `config.json` must be a finite number, not {value!r:.80}")
    return float(value)


def switch_of(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return true or false; of a field that is missing or null the default.

    Raises:
        ConfigError: it is something else.
    """
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` is {value!r:.80} in `config.json`; give true or false")
    return value
