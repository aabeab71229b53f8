"""The interface of tokenizers, and the one that needs no training: bytes."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer, UInt8


@runtime_checkable
class Tokenizer(Protocol):
    """Maps text to integers below `vocabulary`."""

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        ...

    @property
    def separator(self) -> tuple[int, ...]:
        """The tokens that are written after each document."""
        ...

    @property
    def definition(self) -> str | None:
        """The text of `tokenizer.json`, which defines `BytePairs`; None for `Bytes`."""
        ...

    def encode(self, text: str) -> Integer[np.ndarray, " tokens"]:
        """Return the tokens of a text, without a separator; the text has no special tokens."""
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
    def separator(self) -> tuple[int, ...]:
        """A zero byte."""
        return (0,)

    @property
    def definition(self) -> str | None:
        """None: there is nothing to define."""
        return None

    def encode(self, text: str) -> UInt8[np.ndarray, " tokens"]:
        """Return the bytes of `text`."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, tokens: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text of bytes, every one of which is below 256."""
        values: np.ndarray = np.asarray(tokens)
        assert values.size == 0 or (values.min() >= 0 and values.max() < 256), values.max()
        # `replace`: sampled text may end inside of a character.
        return values.astype(np.uint8).tobytes().decode(errors="replace")
