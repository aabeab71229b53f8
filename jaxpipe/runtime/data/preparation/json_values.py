r"""Split JSON text that comes in parts into its values, each of which is parsed alone.

::

    [{"text": "a"}, {"text": "b"}]      ─►  {"text": "a"}   {"text": "b"}
    {"text": "a"}\n{"text":\n "b"}\n    ─►  {"text": "a"}   {"text":\n "b"}

A file of any size is read in the memory of its largest value, and a value that is malformed does
not keep the next ones from being read.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

_OUTSIDE: Final = re.compile(r'["{}\[\],]')
_INSIDE: Final = re.compile(r'\\.|"', re.DOTALL)
_OPENING, _CLOSING = "{[", "}]"


def values_in(parts: Iterable[str], *, most_characters: int) -> Iterator[str]:
    r"""Yield the text of each value of a list, or of values one after another.

    Raises:
        ValueError: the list or a string has no end, or a value has more than `most_characters`.

    >>> list(values_in(['[{"a": "],', '\\"["}', ', [2]]'], most_characters=99))
    ['{"a": "],\\"["}', '[2]']
    """
    splitter = _Splitter(most_characters=most_characters)
    for part in parts:
        yield from splitter.values_of(part)
    yield from splitter.last()


@dataclass(slots=True, kw_only=True)
class _Splitter:
    """Where in the structure of the text the next part begins."""

    most_characters: int
    listed: bool | None = None  # whether values are in a list; None before the first of them
    depth: int = 0  # of brackets inside a value
    quoted: bool = False
    escaped: bool = False  # the part before ends with a backslash in a string
    parts: list[str] = field(default_factory=list)  # of the value that has begun
    num_characters: int = 0

    def values_of(self, part: str) -> Iterator[str]:
        """Yield the values that end in a part."""
        begin = position = 0
        if self.listed is None:
            if not (text := part.lstrip()):
                return
            self.listed = text.startswith("[")
            begin = position = len(part) - len(text) + self.listed
        if self.escaped:
            self.escaped, position = False, position + 1
        while mark := (_INSIDE if self.quoted else _OUTSIDE).search(part, position):
            position = mark.end()
            if self._ends_at(mark.group()):
                is_separator = mark.group() == "," or self.depth < 0
                yield from self._value(part[begin : position - is_separator])
                begin = position
        self.escaped = self.quoted and position < len(part) and part.endswith("\\")
        self._keep(part[begin:])

    def last(self) -> Iterator[str]:
        """Yield what follows the last value, if that is more than blanks.

        Raises:
            ValueError: the list has no end, or a string.
        """
        if self.quoted or (self.listed and self.depth >= 0):
            raise ValueError("cannot find the end of a list or a string")
        yield from self._value("")

    def _ends_at(self, mark: str) -> bool:
        """Follow the structure through a mark, and return whether a value ends there."""
        if self.quoted or mark == '"':
            self.quoted ^= mark == '"'
            return False
        if self.depth < 0:  # behind the list
            return False
        if mark == ",":
            return self.listed is True and self.depth == 0
        self.depth += 1 if mark in _OPENING else -1
        if not self.listed:
            self.depth = max(self.depth, 0)  # a bracket too many is a value, which is malformed
        return self.depth == (-1 if self.listed else 0)

    def _value(self, end: str) -> Iterator[str]:
        self._keep(end)
        text = "".join(self.parts).strip()
        self.parts, self.num_characters = [], 0
        if text:
            yield text

    def _keep(self, text: str) -> None:
        self.num_characters += len(text)
        if self.num_characters > self.most_characters:
            raise ValueError(
                f"cannot hold a value of more than {self.most_characters:,} characters"
            )
        self.parts.append(text)
