"""TOML text to a tree whose integers fit into 64 bits; whatever is wrong is a `ValueError`."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

_LARGEST = 2**63 - 1
_LONG_KEY = re.compile(r"(?<![\w-])(?:[\w-]++\s*+\.\s*+){100}")
"""A key of a hundred parts: nobody writes it, and `tomllib` takes the square of its length."""


def parse_toml(text: str) -> dict[str, Any]:
    r"""Return the tree of a TOML text.

    >>> parse_toml("[run]\nseed = 1")
    {'run': {'seed': 1}}

    Raises:
        ValueError: it is not TOML, nested too deeply, or holds an integer beyond 64 bits, which
            TOML does not promise.
    """
    if long_key := _LONG_KEY.search(text):
        raise ValueError(f"it has a key of more than 100 parts: {long_key[0][:40]}...")
    try:
        tree = tomllib.loads(text)
        for value in _leaves(tree):
            if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
                raise ValueError(f"an integer must fit into 64 bits, {value:.4e} does not")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError:
        raise ValueError("an integer must fit into 64 bits, one does not") from None
    return tree


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
