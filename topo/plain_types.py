"""Say in plain words what type a value in a file must have; msgspec says it in Python's."""

import re
from types import MappingProxyType

_WORDS = MappingProxyType(
    {
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "bool": "true or false",
        "array": "a list",
        "object": "a table",
        "null": "nothing",
    }
)
_EXPECTED = re.compile(
    r"Expected `(?P<kinds>[a-z| ]+)`, got `(?P<found>int|float|str|bool|array|object|null)`"
)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")


def in_plain_words(message: str) -> str:
    """Return a message of msgspec in plain words; others as they are.

    >>> in_plain_words("Expected `int | null`, got `str`")
    'it must be a whole number or nothing, not text'
    >>> in_plain_words("Object missing required field `name` - at `$.hosts[0]`")
    'the field `name` is missing - at `$.hosts[0]`'
    """
    message = _MISSING.sub(r"the field `\g<name>` is missing", message)
    return _EXPECTED.sub(_expected, message)


def _expected(match: re.Match[str]) -> str:
    kinds = [_WORDS.get(kind, kind) for kind in match["kinds"].split(" | ")]
    wanted = f"it must be {' or '.join(kinds)}"
    # Not "not a number" of 10.5, which is one.
    return wanted if match["found"] == "float" else f"{wanted}, not {_WORDS[match['found']]}"
