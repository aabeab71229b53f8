"""Sources of text: files of text or of records, a folder of both, or Python's own manual.

A document is a sequence of pieces, so that a text file of any size is read in parts. A
text file is one document, each record is one, each topic of the manual is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.tokenizer import Piece, Tokenizer
from jaxpipe.runtime.data.preparation.arrow_rows import columns_of, table_rows
from jaxpipe.runtime.data.preparation.bad_records import OnBad, RecordCounts
from jaxpipe.runtime.data.preparation.chat_text import chat_form
from jaxpipe.runtime.data.preparation.conversation import layout_of
from jaxpipe.runtime.data.preparation.document import Document, Fields
from jaxpipe.runtime.data.preparation.file_format import (
    FileFormat,
    FormatKind,
    format_of,
    open_source,
)
from jaxpipe.runtime.data.preparation.record_rows import Row, check_zero_bytes, text_rows
from jaxpipe.runtime.data.preparation.source_files import SourceFiles, source_files

_PIECE = 1 << 20  # characters; a piece ends with the line in which it reaches this length


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Documents that can be read several times, in the same order each time.

    `path` is a file, a folder that is read at all depths, sorted by path, or a pattern: see
    `source_files` and `file_format`. The default is the language reference that comes with every
    CPython (`pydoc_data.topics`, about 0.5 MB of English). `fields` are those of each record that
    have its text. With `held_out`, documents are those of the held-out split in a folder.

    >>> document = next(Source().documents())
    >>> next(iter(document)).text.startswith('The "assert" statement')
    True
    """

    path: Path | None = None
    fields: Fields = field(default_factory=Fields)
    on_bad: OnBad = OnBad.STOP
    held_out: bool = False

    @property
    def description(self) -> str:
        """The origin that `dataset.json` records: the name, without the folder."""
        if self.path is None:
            import platform

            return f"pydoc_data.topics of Python {platform.python_version()}"
        return self.path.name

    def recognised(self) -> "Source":
        """Return the source with the layout of its records, if these have no field with text.

        The first record of a file decides, of the first file with text or with a known layout.

        Raises:
            DataError: it cannot be read.
        """
        fields = self.fields
        if self.path is None or fields.chat is not None:
            return self
        for names in map(_field_names, source_files(self.path).train):
            if fields.text in names:
                return self
            if (layout := layout_of(names)) is not None:
                return replace(self, fields=replace(fields, layout=layout))
        return self

    def written_by(self, tokenizer: Tokenizer) -> "Source":
        """Return the source with conversations in the form of a tokenizer."""
        form = chat_form(tokenizer, self.fields.special)
        return replace(self, fields=replace(self.fields, form=form))

    def files(self) -> SourceFiles:
        """Return the files to read, and those that are left out.

        Raises:
            DataError: there are none.
        """
        if self.path is None:
            return SourceFiles()
        return source_files(self.path, names=self.fields.names)

    def documents(self, counts: RecordCounts | None = None) -> Iterator[Document]:
        """Yield each document, whose pieces must be read before the next document is.

        Records are counted in `counts`.

        Raises:
            DataError: a file is missing or unreadable, or a record is bad, such as one that lacks
                one of the fields, and `on_bad` is to stop.
        """
        if self.path is None:
            yield from _topics(self.fields)
            return
        files = self.files()
        counts = RecordCounts(on_bad=self.on_bad) if counts is None else counts
        for path in files.held_out if self.held_out else files.train:
            yield from _documents(path, self.fields, counts)

    def pieces(self) -> Iterator[str]:
        """Yield the text of all pieces, to train a tokenizer on."""
        return (piece.text for document in self.documents() for piece in document)


def _topics(fields: Fields) -> Iterator[Document]:
    from pydoc_data.topics import topics

    # Sorted: the dictionary of another Python version may have another order.
    return (Document(pieces=(fields.piece(topics[name]),)) for name in sorted(topics))


def _field_names(path: Path) -> tuple[str, ...]:
    """Return the names of the fields of the first record of a file; none of a text."""
    form = format_of(path)
    if form.kind is FormatKind.TEXT:
        return ()
    if form.kind.is_table:
        return columns_of(path, form.kind)
    # A bad record is named where it is read.
    rows = (row.values for row in text_rows(path, form, names=()))
    return next((tuple(values) for values in rows if not isinstance(values, DataError)), ())


def _documents(path: Path, fields: Fields, counts: RecordCounts) -> Iterator[Document]:
    form = format_of(path)
    if form.kind is FormatKind.TEXT:
        yield from _text_document(path, form, fields, counts)
        return
    for row in _rows(path, form, fields):
        counts.num_records += 1
        try:
            document = fields.document(row.read(), where=row.where)
        except DataError as error:
            counts.add_bad(error, where=row.where)
            continue
        counts.num_empty += not any(piece.text for piece in document)
        yield document


def _rows(path: Path, form: FileFormat, fields: Fields) -> Iterator[Row]:
    if form.kind.is_table:
        return table_rows(path, form.kind, columns=fields.names, optional=fields.optional)
    return text_rows(path, form, names=(*fields.names, *fields.optional))


def _text_document(
    path: Path, form: FileFormat, fields: Fields, counts: RecordCounts
) -> Iterator[Document]:
    """Yield the document that a text file is, unless it is bad and left out."""
    counts.num_records += 1
    if counts.on_bad is OnBad.SKIP:
        # Once more: its first pieces are tokens before the last is read.
        try:
            for _ in _pieces(path, form, fields):
                pass
        except DataError as error:
            counts.add_bad(error, where=str(path))
            return
    yield Document(pieces=_pieces(path, form, fields))


def _pieces(path: Path, form: FileFormat, fields: Fields) -> Iterator[Piece]:
    with open_source(path, form.encoding, newline="") as file:
        # To the end of a line, if that is not far: a line may be as long as the file.
        while text := file.read(_PIECE):
            piece = text if text.endswith("\n") else text + file.readline(_PIECE)
            check_zero_bytes(piece, where=str(path))
            yield fields.piece(piece)
