"""Sources of text: files of text or of records, a folder of both, or Python's own manual.

A document is a sequence of pieces, so that a text file of any size is read in parts. A
text file is one document, each record is one, each topic of the manual is one. Records are JSON
lines, or rows of Parquet or Arrow.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import open_text, reason_of
from jaxpipe.runtime.data.preparation.arrow_rows import rows_of, saved_files
from jaxpipe.runtime.data.preparation.document import Fields, Piece

_SUFFIXES = (".jsonl", ".md", ".parquet", ".txt")
_TABLES = (".parquet", ".arrow")
_PIECE = 1 << 20  # characters; a piece ends with the line in which it reaches this length


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Documents that can be read several times, in the same order each time.

    `path` is a text file, a `.jsonl` or `.parquet` file, a folder that `save_to_disk` of Hugging
    Face's datasets wrote, or a folder whose `*.txt`, `*.md`, `*.jsonl` and `*.parquet` files are
    read at all depths, sorted by path. The default is the language reference that comes with every
    CPython (`pydoc_data.topics`, about 0.5 MB of English). `fields` are those of each record that
    have its text.

    >>> document = next(Source().documents())
    >>> next(iter(document)).text.startswith('The "assert" statement')
    True
    """

    path: Path | None = None
    fields: Fields = field(default_factory=Fields)

    @property
    def description(self) -> str:
        """The origin that `dataset.json` records: the name, without the folder."""
        if self.path is None:
            import platform

            return f"pydoc_data.topics of Python {platform.python_version()}"
        return self.path.name

    def documents(self) -> Iterator[Iterable[Piece]]:
        """Yield each document as its pieces, which must be read before the next document is.

        Raises:
            DataError: a file is missing or unreadable, or a record lacks one of the fields.
        """
        if self.path is None:
            return _topics()
        return (doc for file in _files(self.path) for doc in _documents(file, self.fields))

    def pieces(self) -> Iterator[str]:
        """Yield the text of all pieces, to train a tokenizer on."""
        return (piece.text for document in self.documents() for piece in document)


def _topics() -> Iterator[Iterable[Piece]]:
    from pydoc_data.topics import topics

    # Sorted: the dictionary of another Python version may have another order.
    return ((Piece(topics[name]),) for name in sorted(topics))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = saved_files(path) or sorted(
            file for file in path.rglob("*") if file.suffix in _SUFFIXES
        )
        if not files:
            raise DataError(
                f"`source` must hold files that end in {', '.join(_SUFFIXES)}; {path} has none;"
                " name a file or another folder"
            )
        return files
    if not path.is_file():
        raise DataError(f"`source` must be a file or a folder; {path} does not exist; check it")
    return [path]


def _documents(path: Path, fields: Fields) -> Iterator[Iterable[Piece]]:
    if path.suffix in _TABLES:
        for number, row in enumerate(rows_of(path, columns=fields.names), 1):
            yield fields.pieces(row, where=f"row {number} of {path}")
        return
    with _reading(path), open_text(path) as file:
        if path.suffix == ".jsonl":
            yield from _json_lines(file, path, fields)
        else:
            yield _pieces(file, path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Translate the errors of reading a file.

    Raises:
        DataError: it cannot be read, or is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"`source` must be UTF-8; {path} is not ({error.reason} at byte {error.start} of a "
            "read); convert it with iconv"
        ) from None
    except OSError as error:
        raise DataError(
            f"`source` must be readable files; {path} is not ({reason_of(error)}); remove it, or "
            "name another"
        ) from error


def _pieces(file: IO[str], path: Path) -> Iterator[Piece]:
    with _reading(path):
        while lines := file.readlines(_PIECE):
            yield Piece("".join(lines))


def _json_lines(file: IO[str], path: Path, fields: Fields) -> Iterator[Iterable[Piece]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            texts = {n: msgspec.json.decode(record[n]) for n in fields.names if n in record}
        except (RecursionError, ValueError) as error:
            raise DataError(
                f"`source` must have a JSON object in each line; {where} has none ({error});"
                " correct it"
            ) from None
        yield fields.pieces(record | texts, where=where)
