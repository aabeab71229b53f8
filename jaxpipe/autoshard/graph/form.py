"""The form of an equation: what its rule depends on beside its primitive."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The shapes of an equation's operands and results, and its parameters."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    params: Mapping[str, Any]
