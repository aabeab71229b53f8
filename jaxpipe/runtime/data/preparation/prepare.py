"""Prepare a dataset: tokenize the documents, hold tokens out, write the record last."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.dataset import Dataset, open_dataset
from jaxpipe.runtime.data.dataset.record import RECORD, Record, SplitFiles, write_record
from jaxpipe.runtime.data.dataset.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.dataset.tokenizer_config import TOKENIZER
from jaxpipe.runtime.data.preparation.document import Fields
from jaxpipe.runtime.data.preparation.held_out import HeldOutSplit, hold_out, hold_out_documents
from jaxpipe.runtime.data.preparation.source import Source
from jaxpipe.runtime.data.preparation.token_stream import (
    TokenStream,
    ends_in,
    spooled,
    write_ranges,
)
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksum import checksum_file

_log = logging.getLogger(__name__)


def prepare(
    source: Source,
    folder: Path,
    *,
    tokenizer: Tokenizer | None = None,
    eval_fraction: float = 0.1,
    report: Callable[[int], None] | None = None,
) -> Dataset:
    """Write the dataset of `source` into `folder`, and open it.

    Every document has the tokenizer's begin of text and separator around it, but for conversations
    whose chat template writes its own. `hold_out` chooses the tokens for
    evaluation, or whole documents where parts of them do not count. The default tokenizer is
    `Bytes`. The callback `report` receives the number of tokens after each piece of text, of up to
    a million characters, to show progress. Needs twice the disk space of the tokens while it runs.
    Equal text gives equal files.

    Raises:
        DataError: `folder` holds a dataset already, or `source` cannot be read or is too short.
    """
    check_no_dataset(folder)
    tokenizer = Bytes() if tokenizer is None else tokenizer
    source = source.recognised().written_by(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    with spooled(source, folder, tokenizer, report=report) as stream:
        record = _write_splits(
            folder, stream, source, tokenizer, _held_out(stream, eval_fraction=eval_fraction)
        )
    _warn_of_ignored(source.fields)
    write_record(folder, record)  # last: only now is the folder a dataset
    return open_dataset(folder, tokenizer=tokenizer if tokenizer.files else None)


def _held_out(stream: TokenStream, *, eval_fraction: float) -> HeldOutSplit:
    if stream.counted is None:
        return hold_out(len(stream.tokens), eval_fraction=eval_fraction)
    return hold_out_documents(stream.ends, eval_fraction=eval_fraction)


def _write_splits(
    folder: Path, stream: TokenStream, source: Source, tokenizer: Tokenizer, parts: HeldOutSplit
) -> Record:
    ranges = {"train": parts.train, "eval": parts.eval}

    def written(array: UInt[np.ndarray, " tokens"], *, suffix: str = "") -> SplitFiles:
        to = partial(write_ranges, array=array, in_parts=True)
        return SplitFiles(
            **{name: to(folder / f"{name}{suffix}.npy", ranges=of) for name, of in ranges.items()}
        )

    ends = {name: ends_in(stream.ends, of) for name, of in ranges.items()}
    documents = {
        name: write_ranges(
            folder / f"{name}-documents.npy", each, [range(len(each))], in_parts=False
        )
        for name, each in ends.items()
    }
    tokens = written(stream.tokens)
    return Record(
        vocabulary=tokenizer.vocabulary,
        **write_tokenizer(folder, tokenizer),
        source=source.description,
        options=_options(source.fields),
        train=tokens.train,
        eval=tokens.eval,
        documents=SplitFiles(**documents),
        counted=None if stream.counted is None else written(stream.counted, suffix="-counted"),
    )


def check_no_dataset(folder: Path) -> None:
    """Check that a folder holds no dataset, which would be overwritten.

    Raises:
        DataError: it does.
    """
    if (folder / RECORD).exists():
        raise DataError(
            f"`folder` must not hold a dataset already; {folder} does; name another, or remove it"
        )


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the files of a tokenizer, and return what a record says about it."""
    for name, content in tokenizer.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_durably(folder / name, content)
    checksums = {name: checksum_file(folder / name) for name in tokenizer.files}
    return {
        "tokenizer": "byte pairs" if checksums else "bytes",
        "tokenizer_checksum": checksums.pop(TOKENIZER, None),
        "tokenizer_files": checksums or None,
        "begin": tokenizer.frame.begin,
        "separator": tokenizer.frame.separator,
    }


def _options(fields: Fields) -> dict[str, str]:
    """Return the options by which records became tokens, where they have a choice."""
    options = {"special_tokens": fields.special.value}
    return options if fields.chat is None else options | {"layout": fields.chat.value}


def _warn_of_ignored(fields: Fields) -> None:
    if fields.form.ignored:
        names = ", ".join(f"`{name}` ({n})" for name, n in sorted(fields.form.ignored.items()))
        _log.warning("the chat template reads no %s: these fields of messages are lost", names)
