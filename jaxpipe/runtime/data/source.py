"""Sources of text: a text file, JSON lines, a folder of both, or Python's own manual.

A document is a sequence of pieces, so that a text file of any size is read in parts. A
text file is one document, each JSON line is one, each topic of the manual is one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from jaxpipe.errors import DataError

_SUFFIXES = (".jsonl", ".md", ".txt")
_PIECE = 1 << 20  # characters; a piece ends with the line in which it reaches this length


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Documents that can be read several times, in the same order each time.

    `path` is a text file, a `.jsonl` file, or a folder whose `*.txt`, `*.md` and `*.jsonl` files
    are read at all depths, sorted by path. The default is the language reference that comes with
    every CPython (`pydoc_data.topics`, about 0.5 MB of English). `field` is the key of the
    text in each JSON line.

    >>> document = next(Source().documents())
    >>> "".join(document).startswith('The "assert" statement')
    True
    """

    path: Path | None = None
    field: str = "text"

    @property
    def description(self) -> str:
        """The origin that `dataset.json` records: the name, without the folder."""
        if self.path is None:
            import platform

            return f"pydoc_data.topics of Python {platform.python_version()}"
        return self.path.name

    def documents(self) -> Iterator[Iterable[str]]:
        """Yield each document as its pieces, which must be read before the next document is.

        Raises:
            DataError: a file is missing, is not UTF-8, or a line has no text under `field`.
        """
        if self.path is None:
            return _topics()
        return (doc for file in _files(self.path) for doc in _documents(file, field=self.field))

    def pieces(self) -> Iterator[str]:
        """Yield the pieces of all documents, to train a tokenizer on."""
        return (piece for document in self.documents() for piece in document)


def _topics() -> Iterator[Iterable[str]]:
    from pydoc_data.topics import topics

    # Sorted: the dictionary of another Python version may have another order.
    return ((topics[name],) for name in sorted(topics))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
        if not files:
            raise DataError(
                f"`source` must hold files that end in {', '.join(_SUFFIXES)}; {path} has none;"
                " name a file or another folder"
            )
        return files
    if not path.is_file():
        raise DataError(f"`source` must be a file or a folder; {path} does not exist; check it")
    return [path]


def _documents(path: Path, *, field: str) -> Iterator[Iterable[str]]:
    # newline="" keeps line endings as they are.
    with path.open(encoding="utf-8", newline="") as file:
        try:
            if path.suffix == ".jsonl":
                yield from _json_lines(file, path, field=field)
            else:
                yield _pieces(file, path)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None


def _pieces(file: IO[str], path: Path) -> Iterator[str]:
    try:
        while lines := file.readlines(_PIECE):
            yield "".join(lines)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None


def _json_lines(file: IO[str], path: Path, *, field: str) -> Iterator[Iterable[str]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            text = msgspec.json.decode(record[field], type=str)
        except (msgspec.DecodeError, KeyError) as error:
            raise DataError(
                f"`source` must have a JSON object with a text under `{field}` in each line; line"
                f" {number} of {path} has none ({error}); correct it, or name another `field`"
            ) from None
        yield (text,)


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"`source` must be UTF-8; {path} is not ({error.reason} at byte {error.start} of a read);"
        " convert it with iconv"
    )
