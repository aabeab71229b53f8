"""`dataset.json`: the record of a dataset, with the checksums that identify its files.

::

    folder/train.npy         tokens, one-dimensional, of the smallest unsigned dtype that fits
           eval.npy          the same; no token of the text is in both
           tokenizer.json    the definition of byte pairs; absent for the tokenizer of bytes
           tokenizer_config.json, ...   what its owner has beside it
           dataset.json      this record, with a checksum of its own; written last
           train-documents.npy, eval-documents.npy   the ends of documents, as numbers of tokens
           train-counted.npy, eval-counted.npy       1 for each token that is a target, else 0
           *-blocks.npy      checksums of the blocks of a .npy file, for reads of a part of it

Of labelled samples, `train.npy` and `eval.npy` have a row per sample, a sequence of tokens or the
pixels of a picture, and `train-labels.npy` and `eval-labels.npy` the numbers of their classes.
Their record has another format number, since older versions of jaxpipe cannot read them; so has
that of tokens of which some do not count. Older versions read the others without their documents.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import parse_json, read_regular, reason_of
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksum import seal, unseal
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder
from jaxpipe.runtime.storage.stored_array import stored_content

RECORD = "dataset.json"
_MOST_BYTES = 2**26
_VERSION = 1
_LABELLED = 2
_COUNTED = 3

Dtype: TypeAlias = Literal["uint8", "uint16", "uint32", "uint64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """One array: the number of its elements, its dtype and the checksum of the whole file.

    `blocks` is the checksum of the file with the checksums of its blocks; None of older versions.
    """

    num_tokens: int
    dtype: Dtype
    checksum: str
    blocks: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFiles:
    """One more array for the tokens of each split."""

    train: TokenFile
    eval: TokenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFiles:
    """The labels of both splits, their classes in order, and the shape of one input."""

    classes: tuple[str, ...]
    sample: tuple[int, ...]
    train: TokenFile
    eval: TokenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A prepared dataset; `tokenizer_checksum` is None where there is no `tokenizer.json`.

    Pixels of pictures are bytes, and count as tokens of the tokenizer of bytes. `documents` are
    None of samples with labels, and of datasets of older versions; `counted` where all tokens are
    targets. `tokenizer_files` are the checksums of what stands beside `tokenizer.json`; `begin` and
    `separator` the tokens around each document, and `options` how records became text; `request`
    the options of the command, with checksums of the files that they name. They are None of older
    versions.
    """

    vocabulary: int
    tokenizer: Literal["bytes", "byte pairs"]
    tokenizer_checksum: str | None
    source: str
    train: TokenFile
    eval: TokenFile
    labels: LabelFiles | None = None
    documents: SplitFiles | None = None
    counted: SplitFiles | None = None
    tokenizer_files: dict[str, str] | None = None
    begin: tuple[int, ...] | None = None
    separator: tuple[int, ...] | None = None
    options: dict[str, str] | None = None
    request: dict[str, str] | None = None

    @property
    def version(self) -> int:
        """The format number: what an older version would misread has a higher one."""
        if self.labels is not None:
            return _LABELLED
        return _VERSION if self.counted is None else _COUNTED


@dataclass(frozen=True, slots=True)
class _Format:
    format: int


def write_record(folder: Path, record: Record) -> None:
    """Write `dataset.json`, which makes the folder a dataset."""
    content = msgspec.to_builtins(record)
    for name in ("labels", "documents", "counted", "tokenizer_files", "options", "request"):
        if content[name] is None:
            del content[name]
    write_durably(folder / RECORD, seal(content, version=record.version))


def read_record(folder: Folder) -> Record:
    """Read `dataset.json`.

    Raises:
        DataError: the folder is no dataset, or its record is corrupt or of another version, or the
            object storage that has it does not answer.
    """
    path = folder / RECORD
    try:
        data = (
            stored_content(folder, RECORD)
            if isinstance(folder, ObjectFolder)
            else read_regular(folder / RECORD, most_bytes=_MOST_BYTES)
        )
        version = parse_json(data, _Format).format
        known = version if version in (_LABELLED, _COUNTED) else _VERSION
        record = msgspec.convert(unseal(data, version=known), Record)
        if record.version != known:
            raise ValueError(f"`format` is {known}, its files are those of {record.version}")
        return record
    except OSError as error:
        raise DataError(
            f"`data.folder` must hold a prepared dataset; {_absolute(path)} cannot be read "
            f"({reason_of(error)}); prepare one with `jaxpipe data prepare`"
        ) from None
    except ValueError as error:
        raise DataError(
            f"`data.folder` must hold an intact dataset; {path} is not: {error}; prepare it again "
            "with `jaxpipe data prepare`"
        ) from None


def _absolute(path: Folder) -> Folder:
    return path.absolute() if isinstance(path, Path) else path
