"""Prepare a dataset: tokenize the documents, hold tokens out, write the record last.

Tokens are appended to `tokens.partial`, since they cannot be divided before their number is known.
Neither the text nor the tokens are ever in memory as a whole.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.held_out import hold_out
from jaxpipe.runtime.data.record import RECORD, TOKENIZER, Record, TokenFile, write_record
from jaxpipe.runtime.data.source import Source
from jaxpipe.runtime.data.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.tokens import Dataset, open_dataset
from jaxpipe.runtime.storage.atomic_write import sync_file, write_durably
from jaxpipe.runtime.storage.checksum import checksum_file

_TokenDtype: TypeAlias = Literal["uint8", "uint16", "uint32"]
_COPIED = 1 << 22  # tokens at a time


def prepare(
    source: Source,
    folder: Path,
    *,
    tokenizer: Tokenizer | None = None,
    eval_fraction: float = 0.1,
    report: Callable[[int], None] | None = None,
) -> Dataset:
    """Write the dataset of `source` into `folder`, and open it.

    Every document is followed by the tokenizer's separator; `hold_out` chooses the tokens for
    evaluation. The default tokenizer is `Bytes`. The callback `report` receives the number of
    tokens after each piece of text, of up to a million characters, to show progress. Needs twice
    the disk space of the tokens while it runs. Equal text gives equal files.

    Raises:
        DataError: `folder` holds a dataset already, or `source` cannot be read or is too short.
    """
    check_no_dataset(folder)
    tokenizer = Bytes() if tokenizer is None else tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    stream = folder / "tokens.partial"
    dtype = _dtype(tokenizer)
    try:
        num_tokens = _tokenize(source, stream, tokenizer, dtype=dtype, report=report)
        parts = hold_out(num_tokens, eval_fraction=eval_fraction)
        record = Record(
            vocabulary=tokenizer.vocabulary,
            tokenizer="bytes" if tokenizer.definition is None else "byte pairs",
            tokenizer_checksum=write_tokenizer(folder / TOKENIZER, tokenizer),
            source=source.description,
            train=_write_tokens(folder / "train.npy", stream, parts.train, dtype=dtype),
            eval=_write_tokens(folder / "eval.npy", stream, parts.eval, dtype=dtype),
        )
    finally:
        stream.unlink(missing_ok=True)
    write_record(folder, record)  # last: only now is the folder a dataset
    return open_dataset(folder)


def check_no_dataset(folder: Path) -> None:
    """Check that a folder holds no dataset, which would be overwritten.

    Raises:
        DataError: it does.
    """
    if (folder / RECORD).exists():
        raise DataError(
            f"`folder` must not hold a dataset already; {folder} does; name another, or remove it"
        )


def _dtype(tokenizer: Tokenizer) -> _TokenDtype:
    if tokenizer.vocabulary <= 1 << 8:
        return "uint8"
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def _tokenize(
    source: Source,
    stream: Path,
    tokenizer: Tokenizer,
    *,
    dtype: _TokenDtype,
    report: Callable[[int], None] | None,
) -> int:
    """Append all tokens to the stream; return their number."""
    separator: np.ndarray = np.array(tokenizer.separator, dtype)
    num_tokens = 0
    with stream.open("wb") as file:
        for document in source.documents():
            for piece in document:
                tokens = tokenizer.encode(piece).astype(dtype)
                file.write(tokens.data)
                num_tokens += len(tokens)
                if report is not None:
                    report(num_tokens)
            file.write(separator.data)
            num_tokens += len(separator)
    return num_tokens


def _write_tokens(
    path: Path, stream: Path, ranges: Sequence[range], *, dtype: _TokenDtype
) -> TokenFile:
    """Copy ranges of the stream into one .npy file."""
    num_tokens = sum(map(len, ranges))
    tokens = np.memmap(stream, dtype, mode="r")
    # The header is written by hand: numpy's `save` would need all tokens in memory.
    header = {"descr": tokens.dtype.str, "fortran_order": False, "shape": (num_tokens,)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in ranges:
            for start in range(part.start, part.stop, _COPIED):
                file.write(tokens[start : min(start + _COPIED, part.stop)].data)
    sync_file(path)
    return TokenFile(num_tokens=num_tokens, dtype=dtype, checksum=checksum_file(path))


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> str | None:
    """Write a tokenizer that has a definition, and return the checksum; else return None."""
    if tokenizer.definition is None:
        return None
    write_durably(path, tokenizer.definition.encode())
    return checksum_file(path)
