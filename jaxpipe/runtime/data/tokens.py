"""A prepared dataset, opened: memory-mapped arrays of both splits, and their tokenizer."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import UInt

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.byte_pairs import load_byte_pairs
from jaxpipe.runtime.data.input_shape import InputShape
from jaxpipe.runtime.data.record import (
    TOKENIZER,
    LabelFiles,
    Record,
    SplitFiles,
    TokenFile,
    read_record,
)
from jaxpipe.runtime.data.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.storage.checksum import checksum_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The numbers of the classes of all samples, and the names of the classes."""

    train: UInt[np.ndarray, " train_samples"]
    eval: UInt[np.ndarray, " eval_samples"]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitArrays:
    """One more array for the tokens of each split."""

    train: UInt[np.ndarray, " train"]
    eval: UInt[np.ndarray, " eval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The tokens of both splits, on disk until they are read, and their tokenizer.

    With `labels`, `train` and `eval` have a row per sample: tokens, or the pixels of a picture.
    `documents` are the ends of the documents, as numbers of tokens; None where they are unknown.
    `counted` is 1 for each token that is a target; None where all are.
    """

    train: UInt[np.ndarray, "train_tokens ..."]
    eval: UInt[np.ndarray, "eval_tokens ..."]
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


def open_dataset(folder: Path, *, verify: bool = True) -> Dataset:
    """Open the dataset that `prepare` wrote.

    Verifying reads all files once; one rank per host is enough. Without it, a truncated file or a
    wrong dtype is still detected, a flipped token is not.

    Raises:
        DataError: the folder is no dataset, or a file is missing or has changed.
    """
    record = read_record(folder)
    sample = () if record.labels is None else record.labels.sample
    dataset = Dataset(
        train=_open_array(folder / "train.npy", record.train, row=sample, verify=verify),
        eval=_open_array(folder / "eval.npy", record.eval, row=sample, verify=verify),
        labels=_open_labels(folder, record.labels, verify=verify),
        documents=_open_splits(folder, "documents", record.documents, verify=verify),
        counted=_open_splits(folder, "counted", record.counted, verify=verify),
        tokenizer=_open_tokenizer(folder / TOKENIZER, record, verify=verify),
        source=record.source,
    )
    if dataset.vocabulary != record.vocabulary:
        raise _corrupt(folder / TOKENIZER, f"it has {dataset.vocabulary} tokens")
    for name in ("train", "eval"):
        _check_lengths(folder, dataset, name, verify=verify)
    return dataset


def _check_lengths(folder: Path, dataset: Dataset, name: str, *, verify: bool) -> None:
    """Check that what a split has for its tokens is for as many."""
    count = len(getattr(dataset, name))
    if dataset.counted is not None and len(getattr(dataset.counted, name)) != count:
        raise _corrupt(folder / f"{name}-counted.npy", f"it is not for {count} tokens")
    if dataset.documents is not None:
        ends: np.ndarray = getattr(dataset.documents, name)
        in_order = not verify or (len(ends) > 0 and ends[0] > 0 and (ends[1:] > ends[:-1]).all())
        if not in_order or len(ends) == 0 or ends[-1] != count:
            raise _corrupt(folder / f"{name}-documents.npy", f"it does not end at token {count}")


def _open_splits(
    folder: Path, kind: str, record: SplitFiles | None, *, verify: bool
) -> SplitArrays | None:
    if record is None:
        return None
    return SplitArrays(
        train=_open_array(folder / f"train-{kind}.npy", record.train, row=(), verify=verify),
        eval=_open_array(folder / f"eval-{kind}.npy", record.eval, row=(), verify=verify),
    )


def _open_labels(folder: Path, record: LabelFiles | None, *, verify: bool) -> Labels | None:
    if record is None:
        return None
    labels = Labels(
        train=_open_array(folder / "train-labels.npy", record.train, row=(), verify=verify),
        eval=_open_array(folder / "eval-labels.npy", record.eval, row=(), verify=verify),
        classes=record.classes,
    )
    for split in ("train", "eval"):
        # A target outside of the classes would make the loss NaN, far from here.
        if max(getattr(labels, split), default=0) >= len(labels.classes):
            raise _corrupt(folder / f"{split}-labels.npy", "it has labels of no class")
    return labels


def _open_array(
    path: Path, expected: TokenFile, *, row: tuple[int, ...], verify: bool
) -> UInt[np.ndarray, "..."]:
    if verify:
        _verify(path, expected.checksum)
    try:
        # Mapped: a dataset may be larger than memory, and the ranks of a host share its pages.
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise _corrupt(path, str(error)) from None
    found = f"{getattr(tokens, 'dtype', None)}{list(getattr(tokens, 'shape', ()))}"
    num_rows = expected.num_tokens // max(1, prod(row))
    wanted = f"{expected.dtype}{[num_rows, *row]}"
    if found != wanted:
        raise _corrupt(path, f"it holds {found}, not {wanted}")
    return tokens


def _open_tokenizer(path: Path, record: Record, *, verify: bool) -> Tokenizer:
    if record.tokenizer_checksum is None:
        return Bytes()
    if verify:
        _verify(path, record.tokenizer_checksum)
    return load_byte_pairs(path)


def _verify(path: Path, checksum: str) -> None:
    try:
        found = checksum_file(path)
    except OSError as error:
        raise _corrupt(path, str(error)) from None
    if found != checksum:
        raise _corrupt(path, "its content does not match its checksum")


def _corrupt(path: Path, problem: str) -> DataError:
    return DataError(
        f"`folder` must hold an intact dataset; {path} is not: {problem}; prepare it again with"
        " `jaxpipe data prepare`"
    )
