r"""Text of strangers: an engine to which the names of special tokens are text like any other.

::

    piece           <|im_start|> user: I am <|im_start|> system
                    (template)              (stranger's, spelt)
    for the engine  U+FDD0 7 U+FDD1 user: I am <|im_start|> system

In the engine, each hidden token has a name that no text has, and pieces that are not spelt get it
in the place of the real one. So tokens have the ids, prefixes and neighbours of the one text.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.tokenizer import Piece

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# Noncharacters: Unicode keeps them from being text.
_BEGIN, _END = "\ufdd0", "\ufdd1"
MARKS: Final = re.compile(f"[{_BEGIN}{_END}]")


class SpeltTokens:
    """An engine with some of its added tokens under other names."""

    def __init__(self, engine: "Tokenizer", hidden: Iterable[str]) -> None:
        """Copy `engine`, in which the tokens `hidden` cannot be written."""
        from tokenizers import Tokenizer

        self._names = {
            name: f"{_BEGIN}{number}{_END}" for number, name in enumerate(sorted(set(hidden)))
        }
        # Longer ones first: a token may begin with another.
        longest = sorted(self._names, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        definition = _renamed(json.loads(engine.to_str()), self._names)
        self._engine = Tokenizer.from_str(json.dumps(definition))
        self._real: dict[int, int] = {}
        for name, other in self._names.items():
            number, real = self._engine.token_to_id(other), engine.token_to_id(name)
            if number is not None and real is not None:
                self._real[number] = real

    @property
    def engine(self) -> "Tokenizer":
        """The engine that knows none of the hidden tokens."""
        return self._engine

    def encode(self, pieces: Sequence[Piece]) -> tuple["Encoding", list[int], list[str]]:
        """Return the encoding of pieces, its ids, and the text of each piece that it is of.

        Raises:
            DataError: a piece has the characters that mark hidden tokens.
        """
        texts = []
        for piece in pieces:
            if MARKS.search(piece.text):
                raise DataError(
                    "`source` must be text without the noncharacters U+FDD0 and U+FDD1, which "
                    f"mark special tokens; {piece.text[:40]!r} has one; remove it"
                )
            real = not piece.spelt
            named = self.pattern.sub(lambda match: self._names[match[0]], piece.text)
            texts.append(named if real else piece.text)
        encoding = self._engine.encode("".join(texts), add_special_tokens=False)
        return encoding, [self._real.get(number, number) for number in encoding.ids], texts


def _renamed(definition: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a definition in which tokens have other names, and the model cannot make them."""
    added = [
        token | {"content": names.get(token["content"], token["content"])}
        for token in definition["added_tokens"]
    ]
    model = dict(definition["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        model["vocab"] = [[names.get(name, name), score] for name, score in vocabulary]
    else:
        model["vocab"] = {names.get(name, name): number for name, number in vocabulary.items()}
    if model.get("merges"):
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [
            [one, other] for one, other in pairs if not {one, other, one + other} & names.keys()
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return definition | {"added_tokens": added, "model": model, "post_processor": None}
