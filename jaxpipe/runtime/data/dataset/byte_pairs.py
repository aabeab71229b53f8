"""Byte-pair encoding: bytes, and merges of the most frequent pairs of a text.

`tokenizers` is slow to import and not needed to train a model, so it is imported where a
`BytePairs` is created.

Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units,
ACL 2016, section 3.2; over bytes: Radford et al., Language Models are Unsupervised Multitask
Learners, 2019, section 2.2.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Integer, UInt32

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.chat_template import ChatTemplate, chat_template_of
from jaxpipe.runtime.data.dataset.long_text import Window, encode_windows
from jaxpipe.runtime.data.dataset.spelt_tokens import SpeltTokens
from jaxpipe.runtime.data.dataset.tokenizer import Encoded, Frame, Piece, Tokenizer
from jaxpipe.runtime.data.dataset.tokenizer_config import (
    DEFINING,
    TOKENIZER,
    configure,
    ends_of,
    read_config,
)
from jaxpipe.runtime.data.dataset.tokenizer_files import read_tokenizer_files

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Engine

# The ends of text of tokenizers whose files name none.
_MOST_VOCABULARY = 2**20
_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
_log = logging.getLogger(__name__)


class BytePairs:
    """A tokenizer of the library `tokenizers`, from the files of its owner."""

    def __init__(self, definition: str | Mapping[str, bytes]) -> None:
        """Load the text of a `tokenizer.json`, or all files of a tokenizer by their names.

        Raises:
            DataError: they define no tokenizer.
        """
        import tokenizers

        if isinstance(definition, str):
            definition = {TOKENIZER: definition.encode()}
        text = definition[TOKENIZER].decode()
        try:
            self._engine = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"`tokenizer.json` must define a tokenizer of the library tokenizers: {error};"
                " train one with `jaxpipe data prepare`"
            ) from None
        # A definition may bring padding and truncation for inference: both would change the data.
        self._engine.no_padding()
        self._engine.no_truncation()
        self._config = read_config(definition)
        configure(self._engine, self._config)
        self._files = MappingProxyType(dict(definition))

    @property
    def vocabulary(self) -> int:
        """The largest token and one: a vocabulary may have holes."""
        return self._vocabulary

    @property
    def frame(self) -> Frame:
        """What the post-processor puts around a text, and the end of text.

        A blank line separates documents where the tokenizer has no end of text.
        """
        return self._frame

    @cached_property
    def _vocabulary(self) -> int:
        return max(self._engine.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def _frame(self) -> Frame:
        begin, closing = _around(self._engine)
        ends = self._ends(closing)
        if not ends:
            separator = (*closing, *self.encode("\n\n").tolist())
        else:
            separator = closing if closing[-1:] == ends[:1] else (*closing, ends[0])
        return Frame(begin=begin, closing=closing, separator=separator, ends=ends)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of its owner, `tokenizer.json` and what stands beside it."""
        return self._files

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template of its owner; None if there is none."""
        return chat_template_of(self._files, self._config)

    @cached_property
    def canonical(self) -> str:
        """The definition with which the files are read, without what changes no token of a text."""
        definition = json.loads(self._engine.to_str())
        parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
        return json.dumps([definition[part] for part in parts], sort_keys=True)

    @property
    def begin_of_text(self) -> int | None:
        """The token that the files name begin of text, whether or not it is put before texts."""
        token = self._config.named.get("bos_token")
        return None if token is None else self._engine.token_to_id(token.content)

    def encode(self, text: str) -> UInt32[np.ndarray, " tokens"]:
        """Return the tokens of `text`; special tokens in it are their ids."""
        return np.array(self._engine.encode(text, add_special_tokens=False).ids, np.uint32)

    def encode_records(self, records: Sequence[Sequence[Piece]]) -> Sequence[Encoded]:
        """Return the tokens of the text of each record; spelt pieces have no special tokens."""
        spelt = {n for n, pieces in enumerate(records) if any(map(self._is_hidden, pieces))}
        plain = [pieces for n, pieces in enumerate(records) if n not in spelt]
        # Without offsets, which are needed where some pieces do not count.
        is_fast = all(piece.counts for pieces in plain for piece in pieces)
        encode = self._engine.encode_batch_fast if is_fast else self._engine.encode_batch
        texts = ["".join(piece.text for piece in pieces) for pieces in plain]
        # The library divides a batch over all cores, and `encode` holds the lock of Python.
        encodings = iter(encode(texts, add_special_tokens=False))
        encoded = []
        for number, pieces in enumerate(records):
            parts = [piece.text for piece in pieces]
            if number in spelt:
                encoding, ids, parts = self._spelt.encode(pieces)
            else:
                encoding = next(encodings)
                ids = encoding.ids
            counted = _counted(encoding, parts, [piece.counts for piece in pieces])
            encoded.append(Encoded(np.array(ids, np.uint32), counted))
        return encoded

    def _is_hidden(self, piece: Piece) -> bool:
        """Return whether a piece has names of special tokens that are text there."""
        return piece.spelt and self._spelt.pattern.search(piece.text) is not None

    def encode_long(self, pieces: Iterable[Piece]) -> Iterator[UInt32[np.ndarray, " tokens"]]:
        """Yield the tokens of a text of any length, all pieces of which are spelt, or none."""
        pieces = iter(pieces)
        first = next(pieces, Piece(""))
        engine = self._spelt.engine if first.spelt else self._engine
        texts = (piece.text for part in ((first,), pieces) for piece in part)
        return encode_windows(engine, texts, Window())

    def decode(self, tokens: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, separators spelt out."""
        return self._engine.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)

    @property
    def special(self) -> frozenset[str]:
        """The names of special tokens."""
        tokens = self._engine.get_added_tokens_decoder().values()
        return frozenset(token.content for token in tokens if token.special)

    @cached_property
    def control(self) -> frozenset[str]:
        """The names of special tokens, and of other added ones that the chat template writes."""
        tokens = self._engine.get_added_tokens_decoder().values()
        literals = "" if self.template is None else self.template.literals
        return self.special | {
            token.content
            for token in tokens
            if token.content in literals and not token.content.isspace()
        }

    @cached_property
    def _spelt(self) -> SpeltTokens:
        return SpeltTokens(self._engine, self.control)

    def _ends(self, closing: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ends of text: as the files say, else by the usual names."""
        ends = []
        if (token := self._config.named.get("eos_token")) is not None:
            ends.append(self._engine.token_to_id(token.content))
        ends += [end for end in ends_of(self._files) if self._engine.id_to_token(end) is not None]
        if not ends and "eos_token" not in self._config.fields:
            names = (self._engine.token_to_id(name) for name in _END_OF_TEXT)
            ends += closing[-1:] or [number for number in names if number is not None][:1]
        return tuple(dict.fromkeys(end for end in ends if end is not None))


def _around(engine: "Engine") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a post-processor puts before and after a text."""
    vocabulary = (name for _ in range(1) for name in sorted(engine.get_vocab())[:100])
    probes = chain(("a", "0", "."), vocabulary)  # few need the vocabulary, which takes a while
    marked = next(
        (engine.encode(text) for text in probes if engine.encode(text, add_special_tokens=False)),
        None,
    )
    if marked is None:
        return (), ()
    mask = marked.special_tokens_mask
    first = mask.index(0) if 0 in mask else 0
    last = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
    return tuple(marked.ids[:first]), tuple(marked.ids[last:])


def _counted(
    encoding: "Encoding", texts: Sequence[str], counts: Sequence[bool]
) -> Bool[np.ndarray, " tokens"]:
    """Return which tokens have a character of a text that counts."""
    if all(counts):
        return np.ones(len(encoding.ids), bool)
    offsets: np.ndarray = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    counted = np.zeros(len(offsets), bool)
    spans = zip(accumulate(map(len, texts), initial=0), accumulate(map(len, texts)), strict=False)
    for (begin, end), counts_here in zip(spans, counts, strict=True):
        if counts_here and end > begin:
            counted |= (offsets[:, 0] < end) & (offsets[:, 1] > begin)
    return counted


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers give a text the same tokens; that of bytes may have files.

    Runs and exports write the definition of bytes, a dataset of bytes has none.

    >>> from jaxpipe.runtime.data import Bytes
    >>> same_tokens(Bytes(), BytePairs(byte_level_definition()))
    True
    """
    if {name: one.files.get(name) for name in DEFINING} == {
        name: other.files.get(name) for name in DEFINING
    }:
        return True  # without importing `tokenizers`
    pairs = (
        tokenizer if isinstance(tokenizer, BytePairs) else BytePairs(byte_level_definition())
        for tokenizer in (one, other)
    )
    return len({tokenizer.canonical for tokenizer in pairs}) == 1


def byte_level_definition() -> str:
    """Return the `tokenizer.json` of `Bytes`: the 256 bytes by their value, without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # The library writes bytes as characters: the printable ones as themselves, the others from
    # U+0100 on, in their order.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    engine = Tokenizer(models.BPE(vocab={name: byte for byte, name in names.items()}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    return engine.to_str(pretty=True)


def load_byte_pairs(path: Path, *, inside: bool = False) -> BytePairs:
    """Read a tokenizer: the folder of its owner, or a `tokenizer.json` with what is beside it.

    With `inside`, no link may lead out of its folder.

    Raises:
        DataError: a file is missing, or they define no tokenizer.
    """
    return BytePairs(read_tokenizer_files(path, inside=inside))


def train_byte_pairs(texts: Iterable[str], *, vocabulary: int) -> BytePairs:
    """Train a tokenizer of `vocabulary` tokens: 256 bytes, merges of pairs, "<|endoftext|>".

    A short text may have fewer pairs; a warning says how many tokens there are. Equal texts give
    equal tokenizers.

    Raises:
        DataError: `vocabulary` is below 257, or more than a tokenizer has.
    """
    if vocabulary < 257:
        raise DataError(
            f"`vocabulary` must be at least 257 (all bytes and the end of text), not {vocabulary};"
            " raise it, or use the tokenizer of bytes"
        )
    if vocabulary > _MOST_VOCABULARY:
        raise DataError(
            f"`vocabulary` must be at most {_MOST_VOCABULARY:,}, not {vocabulary}: memory is taken "
            "for all of it at once; 32,000 to 256,000 are usual"
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    trained = BytePairs(engine.to_str())
    if trained.vocabulary < vocabulary:
        _log.warning("the text has %d byte pairs, not %d", trained.vocabulary, vocabulary)
    return trained
