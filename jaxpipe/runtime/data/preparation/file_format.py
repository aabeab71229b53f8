"""Tell the format of a file by its content, and by its name where several formats are text.

::

    a.jsonl.zst ─► decompressed ─► mark of a table? ─► of another format? ─► text in UTF-8, or as
                                   Parquet, Arrow      refused by name       its mark says

The name tells JSON, CSV and TSV from other text, in any case.
What is neither such a table nor text is refused, so that no byte is misunderstood.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TextIO

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import LFS_POINTER, open_regular
from jaxpipe.runtime.data.preparation.compression import (
    COMPRESSED,
    compression_of,
    open_decompressed,
    reading,
)

_HEAD: Final = 4096  # bytes


class FormatKind(StrEnum):
    """What the bytes of a file are, once they are decompressed."""

    TEXT = "text"
    JSON = "JSON"
    """Objects in a list, or one after another, as JSON lines are."""
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW_STREAM = "Arrow stream"
    ARROW_FILE = "Arrow file"
    """Also known as Feather of version 2."""

    @property
    def is_table(self) -> bool:
        """Whether pyarrow reads it."""
        return self in (self.PARQUET, self.ARROW_STREAM, self.ARROW_FILE)


_LINES: Final = (".jsonl", ".ndjson", ".jsonlines")
_BY_SUFFIX: Final = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst"), FormatKind.TEXT),
    **dict.fromkeys((".json", *_LINES), FormatKind.JSON),
    ".csv": FormatKind.CSV,
    **dict.fromkeys((".tsv", ".tab"), FormatKind.TSV),
    ".parquet": FormatKind.PARQUET,
    ".arrow": FormatKind.ARROW_STREAM,
    ".feather": FormatKind.ARROW_FILE,
}
_TABLES: Final = {
    b"PAR1": FormatKind.PARQUET,
    b"ARROW1": FormatKind.ARROW_FILE,
    b"\xff\xff\xff\xff": FormatKind.ARROW_STREAM,
}
_ARCHIVE: Final = "unpack it"
_CONVERT: Final = "write it again as Parquet or JSON lines"
_REFUSED: Final = {
    b"PK\x03\x04": ("an archive, or a document of an office program", _ARCHIVE),
    b"7z\xbc\xaf": ("an archive", _ARCHIVE),
    b"Rar!": ("an archive", _ARCHIVE),
    b"\x04\x22\x4d\x18": ("compressed by lz4", "decompress it"),
    b"%PDF": ("PDF", "extract its text"),
    b"FEA1": ("Feather of version 1", _CONVERT),
    b"Obj\x01": ("Avro", _CONVERT),
    b"ORC": ("ORC", _CONVERT),
    b"SQLite format 3": ("a database", _CONVERT),
    b"\x89HDF": ("HDF5", _CONVERT),
    b"\x93NUMPY": ("an array of numpy", _CONVERT),
    b"GGUF": ("a model", "name a file with text"),
}
_MARKUP: Final = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "HTML"),
    ".xml": "XML",
    **dict.fromkeys((".yaml", ".yml"), "YAML"),
    ".rtf": "RTF",
    ".warc": "an archive of web pages",
}
"""Text by their bytes, of which a part alone is meant."""
_MARKS: Final = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\0\0": "utf-32",  # before UTF-16, whose mark it begins with
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_UNMARKED: Final = {"LE": re.compile(rb"([^\0]\0){2}"), "BE": re.compile(rb"(\0[^\0]){2}")}
_OBJECT: Final = re.compile(r'\s*\{\s*"')

SUFFIXES: Final = tuple(_BY_SUFFIX)
"""The ends of names that are read, in lower case; that of a compression may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """The kind of a file, and the encoding of its text."""

    kind: FormatKind
    encoding: str = "utf-8"


def kind_named(name: str) -> FormatKind | None:
    """Return the kind that a name stands for, in any case; None if it stands for none.

    >>> kind_named("A.JSONL.zst")
    <FormatKind.JSON: 'JSON'>
    """
    return _BY_SUFFIX.get(_suffix(name))


def has_lines(name: str) -> bool:
    """Return whether a name says that each line is a record of JSON."""
    return _suffix(name) in _LINES


def format_of(path: Path) -> FileFormat:
    """Return the format of a file.

    Raises:
        DataError: it cannot be read, or its format is not among those that are read.
    """
    with reading(path):
        with open_regular(path) as file:
            compressed = file.peek(8)[:8]
        with open_decompressed(path) as file:
            head = file.peek(_HEAD)[:_HEAD]
    _check_name(path, compressed)
    if head.startswith(LFS_POINTER):
        raise _refused(path, "a pointer of Git LFS", "run `git lfs pull` in its folder")
    table = next((kind for mark, kind in _TABLES.items() if head.startswith(mark)), None)
    if table is not None:
        if compression_of(compressed) is not None:
            raise _refused(path, f"{table}, compressed once more", "decompress it")
        return FileFormat(kind=table)
    if markup := _MARKUP.get(_suffix(path.name)):
        fix = "extract its text, or rename it to .txt if its marks are text, too"
        raise _refused(path, markup, fix)
    kind = kind_named(path.name)
    if kind is not None and kind.is_table:
        return FileFormat(kind=kind)  # it is damaged, and pyarrow says how
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
    if not encoding.startswith(("utf-16", "utf-32")):
        _check_text(path, head)
    if kind is None:
        is_object = _OBJECT.match(head.decode(encoding, "replace")) is not None
        kind = FormatKind.JSON if is_object else FormatKind.TEXT
    return FileFormat(kind=kind, encoding=encoding)


@contextmanager
def open_source(
    path: Path, encoding: str, *, newline: str, errors: str = "strict"
) -> Iterator[TextIO]:
    """Open the text of a file, decompressed and decoded, without a mark before it.

    Raises:
        DataError: it cannot be read.
    """
    with (
        reading(path),
        open_decompressed(path) as file,
        io.TextIOWrapper(file, encoding=encoding, errors=errors, newline=newline) as text,
    ):
        yield text


def _suffix(name: str) -> str:
    """Return the end of a name in lower case, without that of a compression."""
    path = Path(name.lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def _check_name(path: Path, head: bytes) -> None:
    """Check that a file with the name of a compressed one is compressed so."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED and compression_of(head) != suffix and head:
        raise _refused(path, f"not compressed as its name says ({suffix})", "rename it")


def _check_text(path: Path, head: bytes) -> None:
    """Check that a file begins neither as another format does, nor with zero bytes."""
    for mark, (name, fix) in _REFUSED.items():
        if head.startswith(mark):
            raise _refused(path, name, fix)
    if head[257:262] == b"ustar":
        raise _refused(path, "an archive", _ARCHIVE)
    for order, pattern in _UNMARKED.items():
        if pattern.match(head):
            words = "text in UTF-16 without a byte order mark"
            raise _refused(path, words, f"convert it with `iconv -f UTF-16{order} -t UTF-8`")
    if b"\0" in head:
        raise _refused(path, "binary, since it has zero bytes", "name a file with text")


def _refused(path: Path, name: str, fix: str) -> DataError:
    return DataError(
        "`source` must be text, JSON, CSV, TSV, Parquet or Arrow, as it is or compressed "
        f"({', '.join(COMPRESSED)}); {path} is {name}; {fix}"
    )
