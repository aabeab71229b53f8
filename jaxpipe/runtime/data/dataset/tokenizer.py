"""The interface of tokenizers, and the one that needs no training: bytes.

::

    document    begin │ tokens of the text │ separator
    prompt      begin │ tokens of the text │ closing
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Integer, UInt8


class Piece(NamedTuple):
    """A part of a text; where it does not count, its tokens are no targets.

    In a `spelt` piece the names of special tokens are text like any other.
    """

    text: str
    counts: bool = True
    spelt: bool = False


class Encoded(NamedTuple):
    """The tokens of a text in pieces, and which of them count."""

    tokens: Integer[np.ndarray, " tokens"]
    counted: Bool[np.ndarray, " tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The tokens that a tokenizer puts around a text.

    `begin` and `closing` are those of its post-processor, before and after any text; `separator`
    is written after each document. `ends` are the tokens with which a model ends a text, the one
    of the separator first; there may be none.
    """

    begin: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@runtime_checkable
class Tokenizer(Protocol):
    """Maps text to integers below `vocabulary`."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens, unused ones included: the largest, and one."""
        ...

    @property
    def frame(self) -> Frame:
        """The tokens around a text."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files that define it, by their names; of `Bytes` none."""
        ...

    def encode(self, text: str) -> Integer[np.ndarray, " tokens"]:
        """Return the tokens of a text, without those of the frame."""
        ...

    def encode_records(self, records: Sequence[Sequence[Piece]]) -> Sequence[Encoded]:
        """Return the tokens of each record: of the text that its pieces make together.

        A token may be of several pieces, and counts if a character of it is in one that counts.
        Many records are encoded on all cores.
        """
        ...

    def encode_long(self, pieces: Iterable[Piece]) -> Iterator[Integer[np.ndarray, " tokens"]]:
        """Yield the tokens of a text of any length, in memory of a fixed size."""
        ...

    def decode(self, tokens: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class Bytes:
    """One token per byte of UTF-8; a zero byte, which text does not contain, ends a document.

    >>> Bytes().encode("né").tolist()
    [110, 195, 169]
    >>> Bytes().decode(Bytes().encode("né"))
    'né'
    """

    @property
    def vocabulary(self) -> int:
        """256."""
        return 256

    @property
    def frame(self) -> Frame:
        """A zero byte at the end."""
        return Frame(separator=(0,), ends=(0,))

    @property
    def files(self) -> Mapping[str, bytes]:
        """None: there is nothing to define."""
        return MappingProxyType({})

    def encode(self, text: str) -> UInt8[np.ndarray, " tokens"]:
        """Return the bytes of `text`."""
        return np.frombuffer(text.encode(), np.uint8)

    def encode_records(self, records: Sequence[Sequence[Piece]]) -> Sequence[Encoded]:
        """Return the bytes of all pieces of each record."""
        return [self._encoded(pieces) for pieces in records]

    def _encoded(self, pieces: Sequence[Piece]) -> Encoded:
        parts = [self.encode(piece.text) for piece in pieces]
        counted = [
            np.full(len(part), piece.counts) for part, piece in zip(parts, pieces, strict=True)
        ]
        return Encoded(
            np.concatenate([np.empty(0, np.uint8), *parts]),
            np.concatenate([np.empty(0, bool), *counted]),
        )

    def encode_long(self, pieces: Iterable[Piece]) -> Iterator[UInt8[np.ndarray, " tokens"]]:
        """Yield the bytes of each piece."""
        return (self.encode(piece.text) for piece in pieces)

    def decode(self, tokens: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text of bytes, every one of which is below 256."""
        values: np.ndarray = np.asarray(tokens)
        assert values.size == 0 or (values.min() >= 0 and values.max() < 256), values.max()
        # `replace`: sampled text may end inside of a character.
        return values.astype(np.uint8).tobytes().decode(errors="replace")
