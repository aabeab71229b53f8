"""Datasets in object storage: the samples of a dataset on disk, and errors that name the object."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import (
    Dataset,
    Fields,
    Mixture,
    Samples,
    mixture_of,
    open_dataset,
    prepare,
)
from jaxpipe.runtime.data.dataset.byte_pairs import train_byte_pairs
from jaxpipe.runtime.data.dataset.record import RECORD, read_record, write_record
from jaxpipe.runtime.data.preparation.source import Source
from jaxpipe.runtime.storage.object_folder import ObjectFolder, open_object_folder
from jaxpipe.runtime.storage.stored_array import StoredArray
from tests.runtime.data.preparation.test_labelled import numbered, prepare_labelled

LINES = [f"{i} plus {i} is {2 * i}, and {i} times {i} is {i * i}.\n" for i in range(6000)]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[ObjectFolder]:
    found = open_object_folder(f"memory://{request.node.name}", setting="data.folder")
    yield found
    found.remove(found.sizes())


def upload(folder: Path, to: ObjectFolder) -> None:
    for path in folder.iterdir():
        to.put(path.name, path.read_bytes())


def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(LINES))
    prepare(Source(path=path), tmp_path / "data", tokenizer=train_byte_pairs(LINES, vocabulary=300))
    return tmp_path / "data"


def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"question": line[:20], "answer": line[20:]} for line in LINES]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    source = Source(path=path, fields=Fields(prompt="question", completion="answer"))
    prepare(source, tmp_path / "data")
    return tmp_path / "data"


def labelled(tmp_path: Path) -> Path:
    prepare_labelled(numbered(3000), tmp_path / "data")
    return tmp_path / "data"


def batches(dataset: Dataset, *, pack: bool) -> list[Samples]:
    mixture: Mixture = mixture_of([dataset], (1.0,), sequence=32, pack=pack)
    train = [mixture.train_samples(seed=1, step=step, batch=8) for step in (0, 1, 700)]
    return [*train, mixture.eval_samples(index=0, batch=4)]


@pytest.mark.parametrize(
    ("kind", "pack"),
    [(text, False), (text, True), (prompts, False), (prompts, True), (labelled, False)],
)
def test_samples_are_those_on_disk(
    kind: Callable[[Path], Path], pack: bool, tmp_path: Path, url: ObjectFolder
) -> None:
    folder = kind(tmp_path)
    upload(folder, url)
    here, there = open_dataset(folder), open_dataset(url)
    assert isinstance(there.train, StoredArray)
    assert (there.vocabulary, there.source) == (here.vocabulary, here.source)
    for mine, theirs in zip(batches(here, pack=pack), batches(there, pack=pack), strict=True):
        for name in ("inputs", "targets", "segments"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)) or (
                getattr(mine, name) is getattr(theirs, name) is None
            ), name


def test_a_rank_reads_a_part(tmp_path: Path, url: ObjectFolder) -> None:
    upload(text(tmp_path), url)
    dataset = open_dataset(url)
    assert isinstance(dataset.train, StoredArray)
    mixture = mixture_of([dataset], (1.0,), sequence=32)
    mixture.train_samples(seed=1, step=0, batch=8, rows=range(2))
    # The header, and two windows, each of which may lie on the border of two blocks.
    assert dataset.train.num_bytes_read <= 5 * 2**16 < 2 * dataset.train.size


def test_datasets_of_older_versions_are_refused(tmp_path: Path, url: ObjectFolder) -> None:
    folder = text(tmp_path)
    record = read_record(folder)
    write_record(folder, replace(record, train=replace(record.train, blocks=None)))
    open_dataset(folder)
    upload(folder, url)
    with pytest.raises(DataError, match=r"`data.folder` in object storage must have checksums"):
        open_dataset(url)


@pytest.mark.parametrize(
    "file", [RECORD, "tokenizer.json", "train-blocks.npy", "train-documents.npy", "eval.npy"]
)
@pytest.mark.parametrize("way", ["changed", "missing"])
def test_what_is_broken_is_named(file: str, way: str, tmp_path: Path, url: ObjectFolder) -> None:
    upload(text(tmp_path), url)
    if way == "missing":
        url.remove([file])
    else:
        content = bytearray(url.read(file))
        content[len(content) // 3] ^= 1
        url.put(file, bytes(content))
    with pytest.raises(DataError, match=rf"`(data\.)?folder`.*{re.escape(url.url)}/{file}"):
        open_dataset(url)
