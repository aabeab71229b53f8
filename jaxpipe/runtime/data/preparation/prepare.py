"""Prepare a dataset: tokenize the documents, hold tokens out, write the record last."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.dataset import Dataset, open_dataset
from jaxpipe.runtime.data.dataset.record import RECORD, Record, SplitFiles, write_record
from jaxpipe.runtime.data.dataset.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.dataset.tokenizer_config import TOKENIZER
from jaxpipe.runtime.data.preparation.bad_records import BAD_RECORDS, RecordCounts
from jaxpipe.runtime.data.preparation.document import Fields
from jaxpipe.runtime.data.preparation.held_out import hold_out, hold_out_documents
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
    validation: Source | None = None,
    tokenizer: Tokenizer | None = None,
    eval_fraction: float = 0.1,
    request: Mapping[str, str] | None = None,
    report: Callable[[int], None] | None = None,
) -> Dataset:
    """Write the dataset of `source` into `folder`, and open it.

    Every document has the tokenizer's begin of text and separator around it, but for conversations
    whose chat template writes its own. Held out is all of `validation`, else the held-out split of
    a folder, else what `hold_out` chooses: tokens, or whole documents where parts of them do not
    count. The default tokenizer is `Bytes`. The record keeps the `request`. The callback `report`
    receives the number of tokens after each piece of text, of up to a million characters, to show
    progress. Needs twice the disk space of the tokens while it runs. Equal text gives equal files.

    Raises:
        DataError: `folder` holds a dataset already, or a source cannot be read or is too short.
    """
    check_no_dataset(folder)
    tokenizer = Bytes() if tokenizer is None else tokenizer
    source = source.recognised().written_by(tokenizer)
    validation = _validation_of(source, validation)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    with ExitStack() as stack:
        train, *held_out = (
            stack.enter_context(_tokens(part, folder, tokenizer, prefix=prefix, report=report))
            for prefix, part in (("", source), ("eval-", validation))
            if part is not None
        )
        splits = _splits(train, *held_out, eval_fraction=eval_fraction)
        record = _write_splits(folder, splits, source, tokenizer)
        record = replace(record, request=None if request is None else dict(request))
    _warn_of_ignored(source.fields)
    write_record(folder, record)  # last: only now is the folder a dataset
    return open_dataset(folder, tokenizer=tokenizer if tokenizer.files else None)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a preparation has left that was killed before it wrote its record."""
    spooled_files = sorted(folder.glob("*.partial"))
    for path in (*spooled_files, folder / BAD_RECORDS):
        path.unlink(missing_ok=True)
    if spooled_files:
        _log.warning(
            "%s was interrupted while it was prepared: it is prepared from the beginning", folder
        )


def _validation_of(source: Source, validation: Source | None) -> Source | None:
    """Return the source of all that is held out; None if it is a part of `source`."""
    files = source.files()
    if validation is not None:
        files = files.without_held_out("another is held out")
        validation = replace(validation, fields=source.fields, on_bad=source.on_bad)
    elif files.held_out:
        _log.warning("held out: %s", ", ".join(path.name for path in files.held_out)[:200])
        validation = replace(source, held_out=True)
    if files.report:
        _log.warning("left out: %s", files.report)
    return validation


@contextmanager
def _tokens(
    source: Source,
    folder: Path,
    tokenizer: Tokenizer,
    *,
    prefix: str,
    report: Callable[[int], None] | None,
) -> Iterator[TokenStream]:
    """Tokenize a source, and warn of the records that are left out."""
    counts = RecordCounts(on_bad=source.on_bad, folder=folder)
    documents = source.documents(counts)
    with spooled(
        documents, folder, tokenizer, prefix=prefix, masked=source.fields.masked, report=report
    ) as stream:
        counts.report()
        if len(stream.tokens) == 0:
            raise DataError(
                f"`source` must have text; {source.description} has none in its "
                f"{counts.num_records:,} records, of which {counts.num_bad:,} are bad; name another"
            )
        yield stream


def _splits(
    train: TokenStream, held_out: TokenStream | None = None, *, eval_fraction: float
) -> Mapping[str, tuple[TokenStream, tuple[range, ...]]]:
    """Return the tokens of each split: those of a source, and ranges of them."""
    if held_out is not None:
        streams = {"train": train, "eval": held_out}
        return {n: (stream, (range(len(stream.tokens)),)) for n, stream in streams.items()}
    if train.counted is None:
        parts = hold_out(len(train.tokens), eval_fraction=eval_fraction)
    else:
        parts = hold_out_documents(train.ends, eval_fraction=eval_fraction)
    return {"train": (train, parts.train), "eval": (train, parts.eval)}


def _write_splits(
    folder: Path,
    splits: Mapping[str, tuple[TokenStream, tuple[range, ...]]],
    source: Source,
    tokenizer: Tokenizer,
) -> Record:
    def written(kind: str, arrays: Mapping[str, Any]) -> SplitFiles:
        files = {
            name: write_ranges(folder / f"{name}{kind}.npy", array, splits[name][1], in_parts=True)
            for name, array in arrays.items()
        }
        return SplitFiles(**files)

    documents = {}
    for name, (stream, ranges) in splits.items():
        ends = ends_in(stream.ends, ranges)
        path = folder / f"{name}-documents.npy"
        documents[name] = write_ranges(path, ends, [range(len(ends))], in_parts=False)
    counted = {name: stream.counted for name, (stream, _) in splits.items()}
    tokens = written("", {name: stream.tokens for name, (stream, _) in splits.items()})
    return Record(
        vocabulary=tokenizer.vocabulary,
        **write_tokenizer(folder, tokenizer),
        source=source.description,
        options=_options(source.fields),
        train=tokens.train,
        eval=tokens.eval,
        documents=SplitFiles(**documents),
        counted=None if splits["train"][0].counted is None else written("-counted", counted),
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
