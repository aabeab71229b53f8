"""What `dataset.json` says: the files of a dataset, so that no other ones pass for them.

::

    folder/train.npy         tokens, one-dimensional, of the smallest unsigned dtype that holds them
           eval.npy          the same; no token of the text is in both
           tokenizer.json    how byte pairs are made; absent for the tokenizer of bytes
           dataset.json      this record, sealed by a checksum of its own; written last
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksummed_json import seal, unseal

RECORD = "dataset.json"
TOKENIZER = "tokenizer.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """One split: its length, its dtype and the checksum of the whole file."""

    num_tokens: int
    dtype: Literal["uint8", "uint16", "uint32"]
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A prepared dataset; `tokenizer_checksum` is None where there is no `tokenizer.json`."""

    vocabulary: int
    tokenizer: Literal["bytes", "byte pairs"]
    tokenizer_checksum: str | None
    source: str
    train: TokenFile
    eval: TokenFile


def write_record(folder: Path, record: Record) -> None:
    """Write `dataset.json`, which makes the folder a dataset."""
    write_durably(folder / RECORD, seal(msgspec.to_builtins(record), version=_VERSION))


def read_record(folder: Path) -> Record:
    """Read `dataset.json`.

    Raises:
        DataError: the folder is no dataset, or its record is corrupt or of another version.
    """
    path = folder / RECORD
    try:
        return msgspec.convert(unseal(path.read_bytes(), version=_VERSION), Record)
    except OSError:
        raise DataError(
            f"`folder` must hold a prepared dataset; {path} cannot be read; prepare one with"
            " `jaxpipe data prepare`"
        ) from None
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(
            f"`folder` must hold an intact dataset; {path} is not: {error}; prepare it anew with"
            " `jaxpipe data prepare`"
        ) from None
