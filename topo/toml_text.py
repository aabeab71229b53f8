"""Read and write TOML: trees of dictionaries, lists, strings, numbers, booleans and dates.

Integers must fit into 64 bits; whatever is wrong with a text is a `ValueError`.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

_LARGEST = 2**63 - 1
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Possessive (`++`): a long key without a dot must not make the search quadratic as well.
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
        raise ValueError(f"key {long_key[0][:40]}... has more than 100 parts")
    try:
        tree = tomllib.loads(text)
        for value in _leaves(tree):
            if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
                raise ValueError(f"integer {value:.4e} must fit into 64 bits")
    except RecursionError:
        raise ValueError("cannot parse: nested too deeply") from None
    except OverflowError:
        raise ValueError("cannot parse: an integer does not fit into 64 bits") from None
    return tree


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def toml_text(tree: Mapping[str, Any]) -> str:
    """Return the text of a tree: values first, then a section for each dictionary.

    >>> print(toml_text({"name": "a", "run": {"seed": 1, "rates": [0.5, {"nan": float("nan")}]}}))
    name = "a"
    <BLANKLINE>
    [run]
    seed = 1
    rates = [0.5, {nan = nan}]
    <BLANKLINE>
    """
    lines = [toml_pair(key, value) for key, value in tree.items() if not isinstance(value, dict)]
    for name, section in tree.items():
        if isinstance(section, dict):
            lines += ["", f"[{_key(name)}]", *(toml_pair(*pair) for pair in section.items())]
    return "\n".join(lines[1:] if lines[:1] == [""] else lines) + "\n"


def toml_pair(key: str, value: Any) -> str:
    """Return the line of one key.

    >>> toml_pair("latency ms", [1.5, 2])
    '"latency ms" = [1.5, 2]'
    """
    return f"{_key(key)} = {_value(value)}"


def toml_rows(key: str, rows: Iterable[Any], *, indent: int = 4) -> list[str]:
    r"""Return the lines of an array with one element to a line.

    >>> print("\n".join(toml_rows("placement", [(0, 1), (2, 3)])))
    placement = [
        [0, 1],
        [2, 3],
    ]
    """
    return [f"{_key(key)} = [", *(f"{' ' * indent}{_value(row)}," for row in rows), "]"]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(toml_pair(key, inner) for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(float(value))  # numpy's float64 is one, too, with another `repr`
    return value.isoformat() if isinstance(value, date) else str(value).lower()


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    # JSON escapes all that TOML wants escaped but DEL; pairs of surrogates, which it writes for
    # other planes when it escapes everything beyond ASCII, are not TOML.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
