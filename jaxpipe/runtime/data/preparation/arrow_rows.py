"""Rows of Parquet and Arrow files, and of datasets that `save_to_disk` wrote, by pyarrow.

::

    folder/state.json                     names the files below, in order
           data-00000-of-00002.arrow      rows, as a stream of Arrow record batches
           data-00001-of-00002.arrow

pyarrow is an optional dependency, and only the columns with text are read.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import check_regular, parse_json, read_json
from jaxpipe.runtime.data.preparation.compression import import_pyarrow
from jaxpipe.runtime.data.preparation.file_format import FormatKind
from jaxpipe.runtime.data.preparation.record_rows import Row

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_NAME = re.compile(r"[\w-][\w.-]*\.arrow")
_MOST_BYTES = 2**26
_ROWS = 1024  # at a time


def saved_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split that `save_to_disk` wrote; none if it wrote no splits.

    Raises:
        DataError: as `saved_files`.
    """
    if not (folder / _SPLITS).is_file():
        return {}
    splits = sorted(state.parent for state in folder.glob(f"*/{_STATE}"))
    return {split.name: saved_files(split) for split in splits}


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a dataset that `save_to_disk` wrote; none if it is no such folder.

    Raises:
        DataError: its record names no files of the folder.
    """
    if not (folder / _STATE).is_file():
        return []
    try:
        state = read_json(folder / _STATE, dict[str, msgspec.Raw], most_bytes=_MOST_BYTES)
        listed = parse_json(bytes(state["_data_files"]), list[dict[str, str]])
        names = [file["filename"] for file in listed]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"`source` must be a dataset as `save_to_disk` writes it; {folder / _STATE} lists no "
            f"files ({error}); save it again"
        ) from None
    for name in names:
        # It becomes a path: nothing but a file of this folder.
        if not _NAME.fullmatch(name):
            raise DataError(
                f"`source` must be a dataset as `save_to_disk` writes it; {folder / _STATE} names "
                f"{name!r:.80}, not a file data-*.arrow of its folder; save it again"
            )
    return [folder / name for name in names]


def columns_of(path: Path, kind: FormatKind) -> tuple[str, ...]:
    """Return the names of the columns of a table.

    Raises:
        DataError: as `table_rows`.
    """
    with _arrow_errors(path) as arrow, _opened(arrow, path, kind) as table:
        return tuple(table.schema.names)


def table_rows(
    path: Path, kind: FormatKind, *, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the rows of a table, with these columns alone.

    Those of `optional` may be missing.

    Raises:
        DataError: pyarrow is not installed, the file is not intact, or a column is missing.
    """
    number = 0
    with _arrow_errors(path) as arrow, _opened(arrow, path, kind) as table:
        names = _columns_in(path, table.schema.names, columns, optional)
        for batch in table.batches(names):
            for begin in range(0, batch.num_rows, _ROWS):
                for values in _values(batch.slice(begin, _ROWS)):
                    number += 1
                    where = f"row {number} of {path}"
                    yield Row(where=where, values=_readable(values, where))


@contextmanager
def _arrow_errors(path: Path) -> Iterator[Any]:
    """Import pyarrow, and translate its errors.

    Raises:
        DataError: it is not installed, or the file is not intact.
    """
    arrow = import_pyarrow(path)
    try:
        yield arrow
    # Its errors are those of Python, too: ValueError, KeyError, OSError.
    except (arrow.ArrowException, OSError, ValueError) as error:
        words = str(error).splitlines()[:1]
        raise DataError(
            f"`source` must be an intact file of Parquet or Arrow; {path} is not: "
            f"{''.join(words):.120}; write it again"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The schema of an open file, and what yields its batches of some columns."""

    schema: Any
    batches: Callable[[list[str]], Iterator[Any]]


@contextmanager
def _opened(arrow: Any, path: Path, kind: FormatKind) -> Iterator[_Table]:
    check_regular(path.stat(), path)
    if kind is FormatKind.PARQUET:
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            yield _Table(
                schema=file.schema_arrow,
                batches=lambda names: file.iter_batches(batch_size=_ROWS, columns=names),
            )
        return
    with arrow.memory_map(str(path)) as file:
        if kind is FormatKind.ARROW_FILE:
            with arrow.ipc.open_file(file) as reader:
                batches = lambda names: (  # noqa: E731
                    reader.get_batch(n).select(names) for n in range(reader.num_record_batches)
                )
                yield _Table(schema=reader.schema, batches=batches)
            return
        with arrow.ipc.open_stream(file) as reader:
            yield _Table(
                schema=reader.schema,
                batches=lambda names: (batch.select(names) for batch in reader),
            )


def _readable(
    values: dict[str, Any] | UnicodeDecodeError, where: str
) -> dict[str, Any] | DataError:
    if not isinstance(values, UnicodeDecodeError):
        return values
    return DataError(f"`source` must be UTF-8; {where} is not ({values.reason}); write it again")


def _values(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yield the values of each row of a batch, or why its text cannot be decoded."""
    try:
        values = batch.to_pylist()
    except UnicodeDecodeError:
        values = (_row_values(batch.slice(number, 1)) for number in range(batch.num_rows))
    yield from values


def _row_values(batch: Any) -> dict[str, Any] | UnicodeDecodeError:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return error


def _columns_in(
    path: Path, names: Sequence[str], wanted: Sequence[str], optional: Sequence[str]
) -> list[str]:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"`source` must have a column `{missing[0]}`; {path} has {', '.join(names):.200}; name "
            "another field"
        )
    return [*wanted, *(name for name in optional if name in names)]
