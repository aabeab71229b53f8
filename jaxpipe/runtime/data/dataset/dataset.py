"""A prepared dataset, opened: arrays of both splits, and their tokenizer.

On disk the arrays are mapped into memory. In object storage (`data.folder = "s3://..."`) tokens and
pixels are read by ranges, as they are needed; labels and the ends of documents, which have a few
bytes for each sample, are read whole.
"""

from dataclasses import dataclass
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import UInt

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import check_regular, read_regular, reason_of
from jaxpipe.runtime.data.dataset.byte_pairs import BytePairs
from jaxpipe.runtime.data.dataset.record import (
    RECORD,
    LabelFiles,
    Record,
    SplitFiles,
    TokenFile,
    read_record,
)
from jaxpipe.runtime.data.dataset.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.dataset.tokenizer_config import TOKENIZER
from jaxpipe.runtime.data.dataset.tokenizer_files import MOST_BYTES, is_tokenizer_file
from jaxpipe.runtime.storage.block_checksums import blocks_file, read_block_checksums
from jaxpipe.runtime.storage.checksum import checksum_bytes, checksum_file
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder, folder_named
from jaxpipe.runtime.storage.stored_array import StoredArray, stored_content

_Array = TypeVar("_Array")

_DOCUMENTS = "documents"
_CHANGED = "its content does not match its checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """The shape and dtype of the input of one labelled sample, for which a stage is compiled.

    ::

        tokens             inputs (microbatch, sequence)            targets (microbatch, sequence)
        labelled text      inputs (microbatch, sequence)            targets (microbatch,)
        labelled pictures  inputs (microbatch, side, side, values)  targets (microbatch,)

    >>> InputShape.of_model(picture=(32, 32, 3), sequence=65)
    InputShape(shape=(32, 32, 3), dtype='uint8')
    >>> InputShape.of_model(picture=None, sequence=65)
    InputShape(shape=(65,), dtype='int32')
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of_model(cls, *, picture: tuple[int, int, int] | None, sequence: int) -> "InputShape":
        """Return the input of a model of pictures, or of a sequence of tokens."""
        if picture is not None:
            return cls(shape=picture, dtype="uint8")
        return cls(shape=(sequence,), dtype="int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The numbers of the classes of all samples, and the names of the classes."""

    train: UInt[np.ndarray, " train_samples"]
    eval: UInt[np.ndarray, " eval_samples"]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitArrays:
    """One more array for the tokens of each split."""

    train: UInt[np.ndarray, " train"] | StoredArray
    eval: UInt[np.ndarray, " eval"] | StoredArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The tokens of both splits, not in memory until they are read, and their tokenizer.

    With `labels`, `train` and `eval` have a row per sample: tokens, or the pixels of a picture.
    `documents` are the ends of the documents, as numbers of tokens; None where they are unknown.
    `counted` is 1 for each token that is a target; None where all are.
    """

    train: UInt[np.ndarray, "train_tokens ..."] | StoredArray
    eval: UInt[np.ndarray, "eval_tokens ..."] | StoredArray
    tokenizer: Tokenizer
    source: str
    labels: Labels | None = None
    documents: SplitArrays | None = None
    counted: SplitArrays | None = None

    @property
    def vocabulary(self) -> int:
        """The number of different tokens, or of values of a pixel."""
        return self.tokenizer.vocabulary

    @property
    def labelled_input(self) -> InputShape | None:
        """The shape of a labelled input; None if samples are windows of tokens."""
        if self.labels is None:
            return None
        shape = self.train.shape[1:]
        return InputShape(shape=shape, dtype="int32" if len(shape) == 1 else str(self.train.dtype))


def dataset_folder(text: str) -> Folder:
    """Return the folder of a dataset: local, or a prefix in object storage.

    Raises:
        ConfigError: fsspec is not installed, or knows no such URL.
    """
    return folder_named(text, setting="data.folder")


def open_dataset(
    folder: Folder, *, verify: bool = True, tokenizer: Tokenizer | None = None
) -> Dataset:
    """Open the dataset that `prepare` wrote; with its `tokenizer`, if that is loaded already.

    Verifying reads all files on disk once; one rank per host is enough. Without it, a truncated
    file or a wrong dtype is still detected, a flipped token is not. What is in object storage is
    always verified, block by block as it is read.

    Raises:
        DataError: the folder is no dataset, or a file is missing or has changed, or object storage
            does not answer.
    """
    record = read_record(folder)
    sample = () if record.labels is None else record.labels.sample
    dataset = Dataset(
        train=_open_array(folder, "train.npy", record.train, row=sample, verify=verify),
        eval=_open_array(folder, "eval.npy", record.eval, row=sample, verify=verify),
        labels=_open_labels(folder, record.labels, verify=verify),
        documents=_open_splits(folder, _DOCUMENTS, record.documents, verify=verify),
        counted=_open_splits(folder, "counted", record.counted, verify=verify),
        tokenizer=tokenizer or _open_tokenizer(folder, record, verify=verify),
        source=record.source,
    )
    if dataset.vocabulary != record.vocabulary:
        raise _corrupt(folder / TOKENIZER, f"it has {dataset.vocabulary} tokens")
    for name in ("train", "eval"):
        _check_lengths(folder, dataset, name, verify=verify)
    return dataset


def _check_lengths(folder: Folder, dataset: Dataset, name: str, *, verify: bool) -> None:
    """Check that what a split has for its tokens is for as many."""
    count = len(getattr(dataset, name))
    if dataset.counted is not None and len(getattr(dataset.counted, name)) != count:
        raise _corrupt(folder / f"{name}-counted.npy", f"it is not for {count} tokens")
    if dataset.documents is not None:
        ends: np.ndarray = getattr(dataset.documents, name)
        in_order = not verify or ((ends[:1] > 0).all() and (ends[1:] > ends[:-1]).all())
        if not in_order or (ends[-1] if len(ends) else 0) != count:
            raise _corrupt(folder / f"{name}-documents.npy", f"it does not end at token {count}")


def _open_splits(
    folder: Folder, kind: str, record: SplitFiles | None, *, verify: bool
) -> SplitArrays | None:
    if record is None:
        return None
    open_one = _open_whole if kind == _DOCUMENTS else partial(_open_array, row=())
    return SplitArrays(
        train=open_one(folder, f"train-{kind}.npy", record.train, verify=verify),
        eval=open_one(folder, f"eval-{kind}.npy", record.eval, verify=verify),
    )


def _open_labels(folder: Folder, record: LabelFiles | None, *, verify: bool) -> Labels | None:
    if record is None:
        return None
    labels = Labels(
        train=_open_whole(folder, "train-labels.npy", record.train, verify=verify),
        eval=_open_whole(folder, "eval-labels.npy", record.eval, verify=verify),
        classes=record.classes,
    )
    for split in ("train", "eval"):
        # A target outside of the classes would make the loss NaN, far from here.
        if max(getattr(labels, split), default=0) >= len(labels.classes):
            raise _corrupt(folder / f"{split}-labels.npy", "it has labels of no class")
    return labels


def _open_array(
    folder: Folder, file: str, expected: TokenFile, *, row: tuple[int, ...], verify: bool
) -> UInt[np.ndarray, "..."] | StoredArray:
    """Return an array that is read as it is needed."""
    if isinstance(folder, ObjectFolder):
        return _checked(_stored_array(folder, file, expected), folder / file, expected, row=row)
    return _mapped(folder / file, expected, row=row, verify=verify)


def _open_whole(
    folder: Folder, file: str, expected: TokenFile, *, verify: bool
) -> UInt[np.ndarray, " elements"]:
    """Return an array that is small enough to be read from object storage as a whole."""
    if not isinstance(folder, ObjectFolder):
        return _mapped(folder / file, expected, row=(), verify=verify)
    content = stored_content(folder, file)
    if checksum_bytes(content) != expected.checksum:
        raise _corrupt(folder / file, _CHANGED)
    return _checked(np.load(BytesIO(content), allow_pickle=False), folder / file, expected, row=())


def _mapped(
    path: Path, expected: TokenFile, *, row: tuple[int, ...], verify: bool
) -> UInt[np.ndarray, "..."]:
    if verify:
        _verify(path, expected.checksum)
        if expected.blocks is not None:
            _verify(path.with_name(blocks_file(path.name)), expected.blocks)
    try:
        check_regular(path.stat(), path)
        # Mapped: a dataset may be larger than memory, and the ranks of a host share its pages.
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise _corrupt(path, str(error)) from None
    return _checked(tokens, path, expected, row=row)


def _stored_array(folder: ObjectFolder, file: str, expected: TokenFile) -> StoredArray:
    if expected.blocks is None:
        raise DataError(
            f"`{folder.setting}` in object storage must have checksums of blocks, which {folder} "
            "has not: an older version prepared it; prepare it again with `jaxpipe data prepare`"
        )
    blocks = blocks_file(file)
    try:
        checksums = read_block_checksums(stored_content(folder, blocks), checksum=expected.blocks)
    except ValueError as error:
        raise _corrupt(folder / blocks, str(error)) from None
    return StoredArray(folder, file, checksums)


def _checked(tokens: _Array, path: Folder, expected: TokenFile, *, row: tuple[int, ...]) -> _Array:
    """Return an array that has the dtype and the shape of the record."""
    found = f"{getattr(tokens, 'dtype', None)}{list(getattr(tokens, 'shape', ()))}"
    num_rows = expected.num_tokens // max(1, prod(row))
    wanted = f"{expected.dtype}{[num_rows, *row]}"
    if found != wanted:
        raise _corrupt(path, f"it holds {found}, not {wanted}")
    return tokens


def _open_tokenizer(folder: Folder, record: Record, *, verify: bool) -> Tokenizer:
    if record.tokenizer_checksum is None:
        return Bytes()
    checksums = {TOKENIZER: record.tokenizer_checksum, **(record.tokenizer_files or {})}
    files = {}
    for name, checksum in checksums.items():
        if not is_tokenizer_file(name):
            raise _corrupt(folder / RECORD, f"`tokenizer_files` names {name!r:.80}")
        files[name] = _content(folder, name, checksum, verify=verify)
    return BytePairs(files)


def _content(folder: Folder, name: str, checksum: str, *, verify: bool) -> bytes:
    if isinstance(folder, ObjectFolder):
        content = stored_content(folder, name)
        if checksum_bytes(content) != checksum:
            raise _corrupt(folder / name, _CHANGED)
        return content
    if verify:
        _verify(folder / name, checksum)
    try:
        return read_regular(folder / name, most_bytes=MOST_BYTES)
    except OSError as error:
        raise _corrupt(folder / name, reason_of(error)) from None


def _verify(path: Path, checksum: str) -> None:
    try:
        found = checksum_file(path)
    except OSError as error:
        raise _corrupt(path, str(error)) from None
    if found != checksum:
        raise _corrupt(path, _CHANGED)


def _corrupt(path: Folder, problem: str) -> DataError:
    return DataError(
        f"`data.folder` must hold an intact dataset; {path} is not: {problem}; prepare it again "
        "with `jaxpipe data prepare`"
    )
