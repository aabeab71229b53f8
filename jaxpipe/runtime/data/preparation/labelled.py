"""Prepare labelled samples: hold some out, write inputs and labels, write the record last.

Labelled text is lines of a label, a tab and a text, as sequences of equal length::

    line      duplicate<TAB>How old is it?<TAB>What is its age?
    sequence  0  H  o  w  ...  <TAB>  W  h  a  t  ...  ?  0  0  0
              └─ position that the head reads               └─ the separator fills the rest
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import open_text, reason_of
from jaxpipe.runtime.data.dataset.dataset import Dataset, open_dataset
from jaxpipe.runtime.data.dataset.record import (
    LabelFiles,
    Record,
    TokenFile,
    write_record,
)
from jaxpipe.runtime.data.dataset.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.order.permutation import permute
from jaxpipe.runtime.data.preparation.prepare import check_no_dataset, write_tokenizer
from jaxpipe.runtime.storage.atomic_write import sync_file
from jaxpipe.runtime.storage.block_checksums import write_block_checksums
from jaxpipe.runtime.storage.checksum import checksum_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Samples in memory: a row of `inputs` and a number of `labels` each.

    Labels are numbers of `classes`. Inputs are tokens of the `tokenizer`, or pixels, which are
    bytes.
    """

    inputs: UInt[np.ndarray, "samples ..."]
    labels: UInt[np.ndarray, " samples"]
    classes: tuple[str, ...]
    source: str
    tokenizer: Tokenizer = field(default_factory=Bytes)


def prepare_labelled(
    samples: Labelled,
    folder: Path,
    *,
    validation: Labelled | None = None,
    eval_fraction: float = 0.1,
    request: Mapping[str, str] | None = None,
) -> Dataset:
    """Write samples into `folder` as a dataset, and open it.

    Held out is all of `validation`, else a fraction. The samples are shuffled first, always alike,
    so that sources that are sorted by class have all classes in both splits. Equal samples give
    equal files. The record keeps the `request`.

    Raises:
        DataError: `folder` holds a dataset already, `eval_fraction` leaves a split empty, there
            are fewer than two classes, or others in `validation`.
    """
    check_no_dataset(folder)
    if len(samples.classes) < 2:
        raise DataError(
            f"`source` must have samples of at least 2 classes, not {len(samples.classes)}; name "
            "another"
        )
    splits = _splits(samples, validation, eval_fraction=eval_fraction)
    folder.mkdir(parents=True, exist_ok=True)
    inputs, labels = (
        {
            name: _write_array(folder / f"{name}{suffix}.npy", arrays[column], in_parts=not suffix)
            for name, arrays in splits.items()
        }
        for column, suffix in enumerate(("", "-labels"))
    )
    tokenizer = samples.tokenizer
    record = Record(
        vocabulary=tokenizer.vocabulary,
        **write_tokenizer(folder, tokenizer),
        source=samples.source,
        request=None if request is None else dict(request),
        train=inputs["train"],
        eval=inputs["eval"],
        labels=LabelFiles(
            classes=samples.classes,
            sample=samples.inputs.shape[1:],
            train=labels["train"],
            eval=labels["eval"],
        ),
    )
    write_record(folder, record)  # last: only now is the folder a dataset
    return open_dataset(folder, tokenizer=tokenizer if tokenizer.files else None)


def _splits(
    samples: Labelled, validation: Labelled | None, *, eval_fraction: float
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return inputs and labels of each split, shuffled."""
    order = _shuffled(len(samples.labels))
    if validation is not None:
        labels = _labels_in(samples.classes, validation)[_shuffled(len(validation.labels))]
        eval_inputs = validation.inputs[_shuffled(len(labels))]
        train = samples.inputs[order], samples.labels[order]
        return {"train": train, "eval": (eval_inputs, labels.astype(samples.labels.dtype))}
    num_eval = int(len(order) * eval_fraction) if 0 < eval_fraction < 1 else 0
    if eval_fraction != 0 and not 0 < num_eval < len(order):
        raise DataError(
            f"`eval_fraction` must hold out some of the {len(order)} samples, and not all, not "
            f"{eval_fraction}; 0.1 is usual; or name a `validation`, or set it to 0 and "
            "`train.eval_every` to 0"
        )
    rows = {"train": order[num_eval:], "eval": order[:num_eval]}
    return {name: (samples.inputs[row], samples.labels[row]) for name, row in rows.items()}


def _shuffled(size: int) -> Integer[np.ndarray, " samples"]:
    return permute(np.arange(size), size=size, keys=np.zeros(size, np.uint64))


def _labels_in(classes: tuple[str, ...], validation: Labelled) -> Integer[np.ndarray, " samples"]:
    """Return the labels of validation as numbers of the classes of training."""
    others = [name for name in validation.classes if name not in classes]
    if others or not validation.classes:
        raise DataError(
            f"`validation` must have samples of classes of `source` ({', '.join(classes)}"
            f"){f', not of {others[0]!r}' if others else ''}; correct it"
        )
    numbers: np.ndarray = np.array([classes.index(name) for name in validation.classes], np.int64)
    return numbers[validation.labels]


def smallest_unsigned(values: Integer[np.ndarray, "..."], *, below: int) -> UInt[np.ndarray, "..."]:
    """Return values that are `below` a number in the smallest dtype for all such.

    >>> smallest_unsigned(np.array([1, 2]), below=257).dtype.name
    'uint16'
    """
    fits = (name for name in ("uint8", "uint16", "uint32") if below - 1 <= np.iinfo(name).max)
    return values.astype(next(fits))


def _write_array(path: Path, array: UInt[np.ndarray, "..."], *, in_parts: bool) -> TokenFile:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
    sync_file(path)
    name = array.dtype.name
    assert name in ("uint8", "uint16", "uint32"), name
    return TokenFile(
        num_tokens=array.size,
        dtype=name,
        checksum=checksum_file(path),
        blocks=write_block_checksums(path) if in_parts else None,
    )


def read_labelled_text(path: Path, *, tokenizer: Tokenizer, sequence: int) -> Labelled:
    """Return the samples of a file of lines, in memory; longer texts are cut.

    The classes are the labels in the file, sorted. A text may have tabs of its own.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line has no label and text; or `sequence`
            has no room for a text.
    """
    if sequence < 2:
        raise DataError(
            f"`sequence` must be at least 2, the class's position and a token, not {sequence}"
        )
    lines = list(labelled_lines(path))
    classes = tuple(sorted({label for label, _ in lines}))
    number = {label: n for n, label in enumerate(classes)}
    separator = tokenizer.frame.separator[0]
    inputs = np.full((len(lines), sequence), separator, np.uint32)
    for row, (_, text) in zip(inputs, lines, strict=True):
        tokens = tokenizer.encode(text)[: sequence - 1]
        row[1 : 1 + len(tokens)] = tokens
    labels = np.array([number[label] for label, _ in lines], np.int64)
    return Labelled(
        inputs=smallest_unsigned(inputs, below=tokenizer.vocabulary),
        labels=smallest_unsigned(labels, below=max(len(classes), 1)),
        classes=classes,
        source=path.name,
        tokenizer=tokenizer,
    )


def labelled_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line that is not blank.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line has no label and text.
    """
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                label, tab, text = line.rstrip("\r\n").partition("\t")
                if not line.strip():
                    continue
                if not tab or not label or not text:
                    raise DataError(
                        f"`source` must have a label, a tab and a text in each line; line {number} "
                        f"of {path} has not; correct it"
                    )
                yield label, text
    except (OSError, ValueError) as error:
        raise DataError(
            f"`source` must be a readable file of UTF-8, not {path}: "
            f"{reason_of(error)}; name another"
        ) from None
