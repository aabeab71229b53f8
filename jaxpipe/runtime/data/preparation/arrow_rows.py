"""Rows of Parquet files and of Hugging Face datasets that `save_to_disk` wrote, by pyarrow.

::

    folder/state.json                     names the files below, in order
           data-00000-of-00002.arrow      rows, as a stream of Arrow record batches
           data-00001-of-00002.arrow

pyarrow is an optional dependency, and only the columns with text are read.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import check_regular, parse_json, read_json

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_NAME = re.compile(r"[\w-][\w.-]*\.arrow")
_MOST_BYTES = 2**26
_ROWS = 1024  # at a time


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a dataset that `save_to_disk` wrote; none if it is no such folder.

    Raises:
        DataError: it has several splits, or its record names no files of the folder.
    """
    if (folder / _SPLITS).is_file():
        splits = sorted(each.parent.name for each in folder.glob(f"*/{_STATE}"))
        raise DataError(
            f"`source` must be one split of a dataset; {folder} has {', '.join(splits)[:120]}; "
            "name the folder of one"
        )
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


def columns_of(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a `.parquet` or `.arrow` file.

    Raises:
        DataError: as `rows_of`.
    """
    with _arrow_errors(path) as arrow:
        check_regular(path.stat(), path)
        if path.suffix == ".parquet":
            return tuple(import_module("pyarrow.parquet").read_schema(path).names)
        with arrow.memory_map(str(path)) as file, arrow.ipc.open_stream(file) as reader:
            return tuple(reader.schema.names)


def rows_of(
    path: Path, *, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `.parquet` or `.arrow` file, with these columns alone.

    Those of `optional` may be missing.

    Raises:
        DataError: pyarrow is not installed, the file is not one, or a column is missing.
    """
    with _arrow_errors(path) as arrow:
        for batch in _batches(arrow, path, columns, optional):
            yield from batch.to_pylist()


@contextmanager
def _arrow_errors(path: Path) -> Iterator[Any]:
    """Import pyarrow, and translate its errors.

    Raises:
        DataError: it is not installed, or the file is not intact.
    """
    if find_spec("pyarrow") is None:
        raise DataError(
            f"`source` {path.name} needs pyarrow, which is not installed; install it with "
            "`pip install jaxpipe[arrow]`"
        )
    arrow: Any = import_module("pyarrow")
    try:
        yield arrow
    # Its errors are those of Python, too: ValueError, KeyError, OSError.
    except (arrow.ArrowException, OSError, ValueError) as error:
        words = str(error).splitlines()[:1]
        raise DataError(
            f"`source` must be an intact file of Parquet or Arrow; {path} is not: "
            f"{''.join(words):.120}; write it again"
        ) from None


def _batches(
    arrow: Any, path: Path, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[Any]:
    check_regular(path.stat(), path)
    if path.suffix == ".parquet":
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            names = _columns_in(path, file.schema_arrow.names, columns, optional)
            yield from file.iter_batches(batch_size=_ROWS, columns=names)
        return
    with (
        arrow.memory_map(str(path)) as file,
        arrow.ipc.open_stream(file) as reader,
    ):
        names = _columns_in(path, reader.schema.names, columns, optional)
        for batch in reader:
            yield batch.select(names)


def _columns_in(
    path: Path, found: Sequence[str], wanted: Sequence[str], optional: Sequence[str]
) -> list[str]:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(
            f"`source` must have a column `{missing[0]}`; {path} has {', '.join(found):.200}; name "
            "another field"
        )
    return [*wanted, *(name for name in optional if name in found)]
