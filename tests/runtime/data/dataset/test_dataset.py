"""What is prepared is what is opened, or an error says what is wrong."""

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime import data
from jaxpipe.runtime.data import (
    Bytes,
    Dataset,
    Frame,
    Source,
    Tokenizer,
    open_dataset,
    prepare,
    train_byte_pairs,
)

TEXT = "The quick brown fox jumps over the lazy dog. " * 8


@pytest.fixture
def text(tmp_path: Path) -> Source:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return Source(path=path)


def stream(dataset: Dataset) -> str:
    """Return the text of a dataset that is held out in one place."""
    return dataset.tokenizer.decode(np.concatenate([dataset.train, dataset.eval]))


def test_bytes(tmp_path: Path, text: Source) -> None:
    dataset = prepare(text, tmp_path / "data")
    assert stream(dataset) == TEXT + "\0"
    assert dataset.train.dtype == np.uint8
    assert dataset.vocabulary == 256
    assert dataset.source == "text.txt"
    assert isinstance(dataset.train, np.memmap)
    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    arrays = [
        f"{split}{kind}.npy"
        for split in ("eval", "train")
        for kind in ("-blocks", "-documents", "")
    ]
    assert names == ["dataset.json", *arrays]


def test_byte_pairs(tmp_path: Path, text: Source) -> None:
    tokenizer = train_byte_pairs(text.pieces(), vocabulary=270)
    dataset = prepare(text, tmp_path / "data", tokenizer=tokenizer, eval_fraction=0.3)
    assert stream(dataset) == TEXT + "<|endoftext|>"
    assert dataset.train.dtype == np.uint16
    assert dataset.tokenizer.files == tokenizer.files
    assert len(dataset.eval) == int(0.3 * (len(dataset.train) + len(dataset.eval)))


def test_each_document_is_separated(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc"}\n{"text": ""}\n{"text": "defghij"}\n')
    assert stream(prepare(Source(path=path), tmp_path / "data")) == "abc\0\0defghij\0"


def test_the_manual_of_python(tmp_path: Path) -> None:
    seen: list[int] = []
    dataset = prepare(Source(), tmp_path / "data", report=seen.append)
    num_tokens = len(dataset.train) + len(dataset.eval)
    assert seen == sorted(seen)
    assert seen[-1] == num_tokens
    assert len(dataset.eval) == pytest.approx(0.1 * num_tokens, abs=8)


def test_large_vocabularies_take_four_bytes(tmp_path: Path, text: Source) -> None:
    class Wide:
        vocabulary = 1 << 17
        frame = Frame(separator=(65_536,))
        files: ClassVar[dict[str, bytes]] = {}
        encode = staticmethod(Bytes().encode)
        encode_records = staticmethod(Bytes().encode_records)
        encode_long = staticmethod(Bytes().encode_long)
        decode = staticmethod(Bytes().decode)

    tokenizer: Tokenizer = Wide()  # pyright: ignore[reportAssignmentType]
    with pytest.raises(DataError, match="it has 256 tokens"):  # no tokenizer of bytes has more
        prepare(text, tmp_path / "data", tokenizer=tokenizer)
    assert np.load(tmp_path / "data" / "eval.npy")[-1] == 65_536


def test_equal_text_gives_equal_files(tmp_path: Path, text: Source) -> None:
    for name in ("a", "b"):
        prepare(text, tmp_path / name, tokenizer=train_byte_pairs([TEXT], vocabulary=260))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_dataset_is_not_overwritten_but_an_interrupted_one_is(
    tmp_path: Path, text: Source
) -> None:
    folder = tmp_path / "data"
    prepare(text, folder)
    with pytest.raises(DataError, match=r"`folder` must not hold a dataset already; .*data does"):
        prepare(text, folder)
    (folder / "dataset.json").unlink()
    with pytest.raises(DataError, match=r"must hold a prepared dataset; .* `jaxpipe data prepare`"):
        open_dataset(folder)
    assert stream(prepare(text, folder)) == TEXT + "\0"


def test_a_failure_leaves_no_dataset(tmp_path: Path, text: Source) -> None:
    with pytest.raises(DataError, match=r"`eval_fraction` = 0\.001"):
        prepare(text, tmp_path / "data", eval_fraction=0.001)
    assert not list((tmp_path / "data").iterdir())


def test_every_flipped_bit_is_found(tmp_path: Path, text: Source) -> None:
    folder = tmp_path / "data"
    prepare(text, folder, tokenizer=Bytes())
    generator = np.random.default_rng(0)
    for path in sorted(folder.iterdir()):
        intact = path.read_bytes()
        for position in range(len(intact)):
            flipped = bytearray(intact)
            flipped[position] ^= 1 << int(generator.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(DataError, match="must hold an intact dataset"):
                open_dataset(folder)
        path.write_bytes(intact)
    open_dataset(folder)


@pytest.mark.parametrize("name", ["train.npy", "eval.npy"])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "dtype", "dims", "archive"])
def test_a_wrong_token_file(
    tmp_path: Path, text: Source, name: str, verify: bool, damage: str
) -> None:
    folder = tmp_path / "data"
    prepare(text, folder)
    path = folder / name
    tokens = np.load(path)
    path.unlink()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            np.save(path, tokens)
            path.write_bytes(path.read_bytes()[:-1])
        case "dtype":
            np.save(path, tokens.astype(np.int8))
        case "dims":
            np.save(path, tokens[None])
        case "archive":
            with path.open("wb") as file:
                np.savez(file, tokens=tokens)
    with pytest.raises(DataError, match=rf"intact dataset; .*{name} is not: .*prepare it again"):
        open_dataset(folder, verify=verify)


def test_a_missing_tokenizer(tmp_path: Path, text: Source) -> None:
    prepare(text, tmp_path / "data", tokenizer=train_byte_pairs([TEXT], vocabulary=260))
    (tmp_path / "data" / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json is not"):
        open_dataset(tmp_path / "data")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prepared dataset; .*prepare one with `jaxpipe data prep"):
        open_dataset(tmp_path / "none")


def test_another_format_version(tmp_path: Path, text: Source) -> None:
    prepare(text, tmp_path / "data")
    path = tmp_path / "data" / "dataset.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(DataError, match="`format` must be 1, not 9"):
        open_dataset(tmp_path / "data")


def test_the_border_is_sorted_and_imports_neither_jax_nor_tokenizers() -> None:
    assert data.__all__ == sorted(data.__all__)
    assert all(hasattr(data, name) for name in data.__all__)
    code = (
        "import sys, jaxpipe.runtime.data;"
        "print([name for name in ('jax', 'tokenizers', 'rich') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
