"""Tokens are those of the owner's library: of texts, of pieces, and of texts of any length."""

import json
import os
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import BytePairs, Piece, Source, load_byte_pairs, same_tokens
from jaxpipe.runtime.data.dataset.long_text import Window, encode_windows
from tests.runtime.data.dataset.owned_tokenizers import (
    KINDS,
    llama2,
    word_level,
    write_older,
    write_owned,
)

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
transformers = pytest.importorskip("transformers")

SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<s>", "</s>", "<unk>", "<mask>"),
    *("<|begin_of_text|>", "<|eot_id|>", "<end_of_turn>", "[SEP]", "[CLS]", "<left>", "<right>"),
    *("<extra>", "fox", "word", "<|end|>", "<more>", "▁", "▁▁", "\n\n"),
)
WORDS = (
    " ",
    "  ",
    "the",
    " quick",
    "don't",
    "2 + 2 = ",
    "\n",
    "\t",
    "é",
    "日本",
    "🙂",
    "x",
    "12345",
)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(SPECIAL),
        st.sampled_from(WORDS),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    ),
    max_size=8,
)


class Pair(NamedTuple):
    ours: BytePairs
    theirs: Any


@pytest.fixture(scope="module", params=[*KINDS, write_older], ids=lambda kind: kind.__name__)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("owned")
    kind = request.param
    path = kind(folder) if kind is write_older else write_owned(folder, kind)
    return Pair(load_byte_pairs(path), transformers.AutoTokenizer.from_pretrained(path))


@settings(max_examples=40)
@given(parts=TEXTS)
def test_documents_and_prompts_have_the_ids_of_the_owner(pair: Pair, parts: list[str]) -> None:
    text, frame = "".join(parts), pair.ours.frame
    ids = [*frame.begin, *pair.ours.encode(text).tolist(), *frame.closing]
    assert ids == pair.theirs(text).input_ids
    # In pieces, across any boundary.
    pieces = [Piece(part, counts=bool(n % 2)) for n, part in enumerate(parts)]
    encoded = pair.ours.encode_records([pieces])[0]
    assert encoded.tokens.tolist() == pair.ours.encode(text).tolist()
    encoding = pair.theirs(text, add_special_tokens=False, return_offsets_mapping=True)
    ends = list(accumulate(map(len, parts), initial=0))
    spans = [span for n, span in enumerate(pairwise(ends)) if n % 2 and span[0] < span[1]]
    offsets = encoding["offset_mapping"]
    expected = [any(a < end and b > begin for begin, end in spans) for a, b in offsets]
    assert encoded.counted.tolist() == expected


@settings(max_examples=10)
@given(parts=st.lists(TEXTS.map("".join), min_size=30, max_size=60))
def test_a_long_text_has_the_tokens_of_the_whole(pair: Pair, parts: list[str]) -> None:
    window = Window(length=80, context=24)
    engine = pair.ours._engine  # pyright: ignore[reportPrivateUsage]
    tokens = [token for part in encode_windows(engine, parts, window) for token in part.tolist()]
    assert tokens == pair.ours.encode("".join(parts)).tolist()


def test_the_end_and_the_size_are_those_of_the_owner(pair: Pair) -> None:
    theirs, frame = pair.theirs, pair.ours.frame
    if theirs.eos_token_id is not None:
        assert frame.ends == (theirs.eos_token_id,)
        assert frame.separator[-1] == theirs.eos_token_id
    assert pair.ours.vocabulary == max(theirs.get_vocab().values()) + 1


def test_a_text_without_line_ends_is_read_in_parts(tmp_path: Path) -> None:
    text = "2 + 2 = 4. The fox, the dog. " * 90_000
    (tmp_path / "a.txt").write_text(text)
    documents = Source(path=tmp_path / "a.txt").documents()
    pieces = list(next(documents))
    assert max(len(piece.text) for piece in pieces) < len(text)
    assert "".join(piece.text for piece in pieces) == text


@pytest.mark.parametrize("ends", [3, [3, 9]])
def test_ends_of_a_model_without_those_of_generation_are_ends(tmp_path: Path, ends: Any) -> None:
    path = write_owned(tmp_path, word_level)  # it names no end
    (path / "config.json").write_text(json.dumps({"eos_token_id": ends}))
    tokenizer = load_byte_pairs(path)
    # Token 3 is in a hole of the vocabulary: no text ends with what is no token.
    assert tokenizer.frame.ends == ((9,) if ends == [3, 9] else ())
    assert json.loads(tokenizer.files["generation_config.json"]) == {"eos_token_id": ends}
    (path / "generation_config.json").write_text('{"eos_token_id": 4}')
    assert load_byte_pairs(path).frame.ends == (4,)


def test_a_model_that_takes_the_file_as_it_is_keeps_its_prefixes(tmp_path: Path) -> None:
    path = write_owned(tmp_path, llama2)
    as_class = load_byte_pairs(path)
    (path / "config.json").write_text('{"model_type": "mistral"}')
    as_file = load_byte_pairs(path)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    for text in ("  two", " a", "the </s> fox"):
        assert [1, *as_file.encode(text).tolist()] == theirs(text).input_ids
    assert as_class.encode("  two").tolist() != as_file.encode("  two").tolist()
    assert not same_tokens(as_class, as_file)
    assert same_tokens(as_file, BytePairs(as_file.files))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", "[]", "`tokenizer_config.json` must be an object of JSON"),
        ("tokenizer_config.json", '{"eos_token": {}}', "`eos_token` of .* must be a token"),
        ("added_tokens.json", '{"<a>": "x"}', "`added_tokens.json` must give tokens by number"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = write_owned(tmp_path, word_level)
    (path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        load_byte_pairs(path)
