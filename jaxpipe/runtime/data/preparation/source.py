"""Sources of text: files of text or of records, a folder of both, or Python's own manual.

A document is a sequence of pieces, so that a text file of any size is read in parts. A
text file is one document, each record is one, each topic of the manual is one. Records are JSON
lines, or rows of Parquet or Arrow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import open_text, reason_of
from jaxpipe.runtime.data.dataset.tokenizer import Piece, Tokenizer
from jaxpipe.runtime.data.preparation.arrow_rows import columns_of, rows_of, saved_files
from jaxpipe.runtime.data.preparation.chat_text import chat_form
from jaxpipe.runtime.data.preparation.conversation import layout_of
from jaxpipe.runtime.data.preparation.document import Document, Fields

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

    def recognised(self) -> "Source":
        """Return the source with the layout of its first record, if that has no field with text.

        Raises:
            DataError: it cannot be read.
        """
        fields = self.fields
        if self.path is None or fields.chat is not None:
            return self
        names = next(filter(None, map(_field_names, _files(self.path))), ())
        if not names or fields.text in names:
            return self
        return replace(self, fields=replace(fields, layout=layout_of(names)))

    def written_by(self, tokenizer: Tokenizer) -> "Source":
        """Return the source with conversations in the form of a tokenizer."""
        form = chat_form(tokenizer, self.fields.special)
        return replace(self, fields=replace(self.fields, form=form))

    def documents(self) -> Iterator[Document]:
        """Yield each document, whose pieces must be read before the next document is.

        Raises:
            DataError: a file is missing or unreadable, or a record lacks one of the fields.
        """
        if self.path is None:
            return _topics(self.fields)
        return (doc for file in _files(self.path) for doc in _documents(file, self.fields))

    def pieces(self) -> Iterator[str]:
        """Yield the text of all pieces, to train a tokenizer on."""
        return (piece.text for document in self.documents() for piece in document)


def _topics(fields: Fields) -> Iterator[Document]:
    from pydoc_data.topics import topics

    # Sorted: the dictionary of another Python version may have another order.
    return (Document(pieces=(fields.piece(topics[name]),)) for name in sorted(topics))


def _field_names(path: Path) -> tuple[str, ...]:
    """Return the names of the fields of the first record of a file; none of a text."""
    if path.suffix in _TABLES:
        return columns_of(path)
    if path.suffix != ".jsonl":
        return ()
    with _reading(path), open_text(path) as file:
        line = next((line for line in file if line.strip()), "{}")
    try:
        return tuple(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except (RecursionError, ValueError):
        return ()  # it is named where the line is read


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


def _documents(path: Path, fields: Fields) -> Iterator[Document]:
    if path.suffix in _TABLES:
        rows = rows_of(path, columns=fields.names, optional=fields.optional)
        for number, row in enumerate(rows, 1):
            yield fields.document(row, where=f"row {number} of {path}")
        return
    with _reading(path), open_text(path) as file:
        if path.suffix == ".jsonl":
            yield from _json_lines(file, path, fields)
        else:
            yield Document(pieces=_pieces(file, path, fields))


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


def _pieces(file: IO[str], path: Path, fields: Fields) -> Iterator[Piece]:
    with _reading(path):
        # To the end of a line, if that is not far: a line may be as long as the file.
        while text := file.read(_PIECE):
            rest = "" if text.endswith("\n") else file.readline(_PIECE)
            yield fields.piece(text + rest)


def _json_lines(file: IO[str], path: Path, fields: Fields) -> Iterator[Document]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            names = (*fields.names, *fields.optional)
            texts = {n: msgspec.json.decode(record[n]) for n in names if n in record}
        except (RecursionError, ValueError) as error:
            raise DataError(
                f"`source` must have a JSON object in each line; {where} has none ({error});"
                " correct it"
            ) from None
        yield fields.document(record | texts, where=where)
