"""The text of tokens that come one by one: whole characters, and the end at a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.runtime.data import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer makes of the first bytes of a character."""


@dataclass(slots=True)
class Continuation:
    """A text that grows by tokens, and ends before the first of the `stops` in it.

    >>> from jaxpipe.runtime.data import Bytes
    >>> text = Continuation(Bytes(), stops=("end",))
    >>> [text.add(token) for token in b"men. end of"], text.is_stopped
    (['m', '', '', 'en.', ' ', '', '', '', '', '', ''], True)
    >>> text.rest(), text.shown
    ('', 'men. ')
    """

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    is_stopped: bool = False
    shown: str = ""
    _tokens: list[int] = field(default_factory=list)

    def add(self, token: int) -> str:
        """Return the text that a token completes: what no later token can change or stop."""
        if self.is_stopped:
            return ""
        self._tokens.append(token)
        text = self._text()
        positions = [position for stop in self.stops if (position := text.find(stop)) >= 0]
        if positions:
            self.is_stopped = True
            return self._show(text[: min(positions)])
        text = text.rstrip(_UNFINISHED)
        return self._show(text[: len(text) - self._held(text)])

    def rest(self) -> str:
        """Return what was held back, once there are no more tokens."""
        return "" if self.is_stopped else self._show(self._text())

    def _text(self) -> str:
        return self.tokenizer.decode(np.array(self._tokens, np.int64))

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown += new
        return new

    def _held(self, text: str) -> int:
        """Return the length of the longest end of a text with which a stop string begins."""
        return max(
            (
                length
                for stop in self.stops
                for length in range(1, len(stop))
                if text.endswith(stop[:length])
            ),
            default=0,
        )
