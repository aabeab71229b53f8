"""Tokenizers are inverses of themselves on any text."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import (
    BytePairs,
    Bytes,
    Piece,
    Source,
    Tokenizer,
    load_byte_pairs,
    train_byte_pairs,
)

PAIRS = train_byte_pairs(list(Source().pieces())[:20], vocabulary=400)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("tokenizer", [Bytes(), PAIRS], ids=["bytes", "byte pairs"])
@given(text=TEXTS)
def test_decode_inverts_encode(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert (tokens < tokenizer.vocabulary).all()


@pytest.mark.parametrize("tokenizer", [Bytes(), PAIRS], ids=["bytes", "byte pairs"])
def test_separators_are_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.frame.separator
    assert all(0 <= token < tokenizer.vocabulary for token in tokenizer.frame.separator)


def test_broken_bytes_become_replacement_characters() -> None:
    assert Bytes().decode(np.array([0xC3, 0x41])) == "\N{REPLACEMENT CHARACTER}A"


def test_the_end_of_text_in_a_text_is_its_token_but_where_it_is_spelt() -> None:
    (end,) = PAIRS.frame.separator
    assert PAIRS.frame.ends == (end,)
    assert PAIRS.decode(np.array([end])) == "<|endoftext|>"
    assert PAIRS.encode("<|endoftext|>").tolist() == [end]
    spelt = PAIRS.encode_records([[Piece("<|endoftext|>", spelt=True), Piece("<|endoftext|>")]])[0]
    assert spelt.tokens.tolist().count(end) == 1
    assert PAIRS.decode(spelt.tokens) == "<|endoftext|>" * 2
    (tokens,) = PAIRS.encode_long([Piece("<|endoftext|>", spelt=True)])
    assert tokens.tolist() == spelt.tokens.tolist()[:-1]


def test_training_is_deterministic_and_merges() -> None:
    again = train_byte_pairs(list(Source().pieces())[:20], vocabulary=400)
    assert again.files == PAIRS.files
    assert PAIRS.vocabulary == 400
    assert len(PAIRS.encode("the statement")) < len(Bytes().encode("the statement"))


def test_records_of_a_batch_are_encoded_as_alone() -> None:
    hidden = Piece("<|endoftext|>", spelt=True)
    records = [
        [Piece("the statement")],
        [Piece("a prompt ", counts=False), Piece("and what is learned")],
        [hidden, Piece("<|endoftext|>")],
        [],
        [Piece("é\N{PILE OF POO}", counts=False)],
    ]
    for tokenizer in (PAIRS, Bytes()):
        together = tokenizer.encode_records(records)
        for pieces, encoded in zip(records, together, strict=True):
            (alone,) = tokenizer.encode_records([pieces])
            np.testing.assert_array_equal(encoded.tokens, alone.tokens)
            np.testing.assert_array_equal(encoded.counted, alone.counted)
            text = "".join(piece.text for piece in pieces)
            assert tokenizer.decode(encoded.tokens) == text
    assert PAIRS.encode_records([]) == []


def test_a_short_text_has_fewer_pairs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert train_byte_pairs(["aaaa"], vocabulary=1000).vocabulary < 300
    assert "byte pairs, not 1000" in caplog.text


def test_a_tokenizer_without_end_of_text_separates_by_a_blank_line() -> None:
    definition = PAIRS.files["tokenizer.json"].decode()
    other = BytePairs(definition.replace("<|endoftext|>", "<|other|>"))
    assert other.frame.ends == ()
    assert other.decode(np.array(other.frame.separator)) == "\n\n"


def test_a_vocabulary_below_the_bytes_or_beyond_all_tokenizers() -> None:
    with pytest.raises(DataError, match=r"`vocabulary` must be at least 257 .* not 256"):
        train_byte_pairs(["a"], vocabulary=256)
    with pytest.raises(DataError, match=r"`vocabulary` must be at most 1,048,576, not 1000000000"):
        train_byte_pairs(["a"], vocabulary=10**9)


def test_what_defines_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`tokenizer.json` must define a tokenizer"):
        BytePairs("{}")
    with pytest.raises(DataError, match="`tokenizer` must be the path of a readable"):
        load_byte_pairs(tmp_path / "none.json")
