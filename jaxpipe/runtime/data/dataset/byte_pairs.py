"""Byte-pair encoding: bytes, and merges of the most frequent pairs of a text.

`tokenizers` is slow to import and not needed to train a model, so it is imported where a
`BytePairs` is created.

Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units,
ACL 2016, section 3.2; over bytes: Radford et al., Language Models are Unsupervised Multitask
Learners, 2019, section 2.2.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt32

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import read_text, reason_of
from jaxpipe.runtime.data.dataset.tokenizer import Tokenizer

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
_MOST_BYTES = 2**28
_log = logging.getLogger(__name__)


class BytePairs:
    """A tokenizer of the library `tokenizers`, from the text of its `tokenizer.json`."""

    def __init__(self, definition: str) -> None:
        """Load `definition`.

        Raises:
            DataError: it defines no tokenizer.
        """
        import tokenizers

        try:
            self._engine = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"`tokenizer.json` must define a tokenizer of the library tokenizers: {error};"
                " train one with `jaxpipe data prepare`"
            ) from None
        # A definition may bring padding and truncation for inference: both would change the data.
        self._engine.no_padding()
        self._engine.no_truncation()
        # A text that mentions "<|endoftext|>" does not end there.
        self._engine.encode_special_tokens = True
        self._definition = definition

    @property
    def vocabulary(self) -> int:
        """The number of tokens, special ones included."""
        return self._engine.get_vocab_size(with_added_tokens=True)

    @property
    def separator(self) -> tuple[int, ...]:
        """The end-of-text token; a blank line where the tokenizer has none."""
        ends = (self._engine.token_to_id(name) for name in _END_OF_TEXT)
        end = next((end for end in ends if end is not None), None)
        return tuple(self.encode("\n\n").tolist()) if end is None else (end,)

    @property
    def definition(self) -> str | None:
        """The text of `tokenizer.json`."""
        return self._definition

    def encode(self, text: str) -> UInt32[np.ndarray, " tokens"]:
        """Return the tokens of `text`."""
        return np.array(self._engine.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(self, tokens: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, separators spelt out."""
        return self._engine.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers are the same; that of bytes may be defined by a file or not.

    Runs and exports write the definition of bytes, a dataset of bytes has none.

    >>> from jaxpipe.runtime.data import Bytes
    >>> same_tokens(Bytes(), BytePairs(byte_level_definition()))
    True
    """
    if one.definition == other.definition:
        return True  # without importing `tokenizers`
    definitions = {each.definition or byte_level_definition() for each in (one, other)}
    return len(definitions) == 1


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
    """Read a `tokenizer.json`; with `inside`, no link may lead out of its folder.

    Raises:
        DataError: it is missing, or it defines no tokenizer.
    """
    try:
        text = read_text(path, most_bytes=_MOST_BYTES, inside=inside)
    except (OSError, ValueError) as error:
        raise DataError(
            f"`tokenizer` must be the path of a readable tokenizer.json, not {path}: "
            f"{reason_of(error)}; name another, or train one by giving `vocabulary`"
        ) from None
    return BytePairs(text)


def train_byte_pairs(texts: Iterable[str], *, vocabulary: int) -> BytePairs:
    """Train a tokenizer of `vocabulary` tokens: 256 bytes, merges of pairs, "<|endoftext|>".

    A short text may have fewer pairs; a warning says how many tokens there are. Equal texts give
    equal tokenizers.

    Raises:
        DataError: `vocabulary` is below 257.
    """
    if vocabulary < 257:
        raise DataError(
            f"`vocabulary` must be at least 257 (all bytes and the end of text), not {vocabulary};"
            " raise it, or use the tokenizer of bytes"
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
