r"""Records of files of text: JSON lines, a list in JSON, and tables with a head, CSV and TSV.

A row names where it stands, and has its values or what is wrong with it: a row that is malformed
does not keep the next ones from being read. Bytes that are not UTF-8 are lone surrogates here, for
which the field or the line is refused that has them.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import parse_number_json
from jaxpipe.runtime.data.preparation.file_format import (
    FileFormat,
    FormatKind,
    has_lines,
    open_source,
)
from jaxpipe.runtime.data.preparation.json_values import values_in

MOST_CHARACTERS: Final = 2**28
"""Of one record."""

_PART: Final = 2**20  # characters that are read at once
_DELIMITERS: Final = ",;\t|"
_BYTES: Final = 0xDC00  # where a decoder puts the bytes that are not UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record: where it stands, and its values, or the error of reading it."""

    where: str
    values: Mapping[str, Any] | DataError

    def read(self) -> Mapping[str, Any]:
        """Return the values.

        Raises:
            DataError: there are none.
        """
        if isinstance(self.values, DataError):
            raise self.values
        return self.values


def text_rows(path: Path, form: FileFormat, *, names: Sequence[str]) -> Iterator[Row]:
    """Yield the records of a file of JSON, CSV or TSV; of JSON, the `names` are decoded alone.

    Raises:
        DataError: it cannot be read, or is no file of records.
    """
    is_json = form.kind is FormatKind.JSON
    newline = "\n" if is_json else ""
    with open_source(path, form.encoding, newline=newline, errors="surrogateescape") as file:
        if is_json:
            yield from _json_rows(file, path, names)
        else:
            yield from _delimited_rows(file, path, is_tsv=form.kind is FormatKind.TSV)


def check_characters(text: str, *, subject: str, where: str) -> None:
    """Check that UTF-8 can hold a text, and that it has no zero bytes.

    Raises:
        DataError: it cannot, or it has.
    """
    check_zero_bytes(text, subject=subject, where=where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if _BYTES <= code < _BYTES + 256:
            raise DataError(
                f"{subject} must be UTF-8; {where} is not (byte {code - _BYTES:#04x}); convert it "
                "with iconv"
            ) from None
        # Half of a pair of surrogates, which JSON can escape.
        raise DataError(
            f"{subject} must be text that UTF-8 can hold; {where} has none ({error.reason}); "
            "correct it"
        ) from None


def check_zero_bytes(text: str, *, subject: str = "`source`", where: str) -> None:
    """Check that a text has no zero bytes: some tokenizers end documents with them.

    Text in another encoding has them.

    Raises:
        DataError: it has.
    """
    if "\0" in text:
        raise DataError(
            f"{subject} must be text without zero bytes; {where} has one; remove it, or convert "
            "text in UTF-16 with iconv"
        )


def stray_json(path: Path, form: FileFormat, names: Sequence[str]) -> str | None:
    """Return why a file of JSON has no records: one object without these fields, or no objects.

    None if it has some, or may have: what is malformed is an error where it is read.
    """
    if form.kind is not FormatKind.JSON or has_lines(path.name):
        return None
    with open_source(path, form.encoding, newline="\n", errors="surrogateescape") as file:
        begin = file.read(_PART).lstrip()
    if begin.startswith("["):
        first = begin[1:].lstrip()
        return None if not first or first[0] in "{]" else "a list in JSON, of no objects"
    if not begin.startswith("{"):
        return "JSON without objects" if _is_value(begin) else None
    first, *others = islice(text_rows(path, form, names=()), 2)
    if others or isinstance(first.values, DataError) or set(names) & set(first.values):
        return None
    return f"one object in JSON, without {', '.join(f'`{name}`' for name in names)}"


def _is_value(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except ValueError:
        return False
    return True


def _json_rows(file: TextIO, path: Path, names: Sequence[str]) -> Iterator[Row]:
    begin = file.read(_PART)
    first, *_ = begin.lstrip().split("\n", 1)
    if not first.startswith("[") and (has_lines(path.name) or _is_json(first)):
        lines = chain(io.StringIO(begin + _line(file), newline="\n"), iter(lambda: _line(file), ""))
        for number, line in enumerate(lines, 1):
            if not line.isspace():
                yield _json_row(line, f"line {number} of {path}", names)
        return
    parts = chain([begin], iter(lambda: file.read(_PART), ""))
    try:
        for number, value in enumerate(values_in(parts, most_characters=MOST_CHARACTERS), 1):
            yield _json_row(value, f"record {number} of {path}", names)
    except ValueError as error:
        raise DataError(
            f"`source` must be a list of JSON objects, or objects one after another; {path} is "
            f"not: {error}; correct it"
        ) from None


def _line(file: TextIO) -> str:
    """Return the next line; of one that is too long the begin, which is longer than allowed."""
    line = file.readline(MOST_CHARACTERS + 1)
    rest = line
    while len(rest) > MOST_CHARACTERS and not rest.endswith("\n"):
        rest = file.readline(MOST_CHARACTERS + 1)
    return line


def _json_row(text: str, where: str, names: Sequence[str]) -> Row:
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"cannot hold more than {MOST_CHARACTERS:,} characters")
        return Row(where=where, values=_object(text, names))
    except DataError as error:
        return Row(where=where, values=error)
    except UnicodeEncodeError:
        return Row(where=where, values=_not_characters(text, where))
    except (RecursionError, ValueError) as error:
        words = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        fault = DataError(
            f"`source` must have JSON objects as records; {where} has none ({words:.200}); "
            "correct it"
        )
        return Row(where=where, values=fault)


def _not_characters(text: str, where: str) -> DataError:
    try:
        check_characters(text, subject="`source`", where=where)
    except DataError as error:
        return error
    raise AssertionError(where)


def _object(text: str, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the object that a text is; fields that are not of `names` stay JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        record: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return record | {n: msgspec.json.decode(record[n]) for n in names if n in record}
    except UnicodeEncodeError:
        raise
    except ValueError as error:
        # NaN, which Python's programs write, and halves of surrogates in fields of no interest.
        return _python_object(text, error)


def _python_object(text: str, error: ValueError) -> Mapping[str, Any]:
    try:
        values = parse_number_json(text)
    except ValueError:
        raise error from None
    if not isinstance(values, dict):
        raise error
    return values


def _is_json(text: str) -> bool:
    try:
        _object(text, ())
    except (RecursionError, ValueError):
        return False
    return True


def _delimited_rows(file: TextIO, path: Path, *, is_tsv: bool) -> Iterator[Row]:
    head = file.readline(_PART)
    delimiter = "\t" if is_tsv else max(_DELIMITERS, key=head.count)
    csv.field_size_limit(MOST_CHARACTERS)  # of the process, by default 128 KiB
    rows = csv.reader(chain([head], file), delimiter=delimiter, strict=True)
    names = _names_in(rows, path)
    for where, row in _rows_with_places(rows, path):
        if isinstance(row, DataError):
            yield Row(where=where, values=row)
        elif len(row) != len(names):
            fault = DataError(
                f"`source` must have as many fields in each row as in its head, {len(names)}; "
                f"{where} has {len(row)}; correct it, or quote a field that has the delimiter"
            )
            yield Row(where=where, values=fault)
        else:
            yield Row(where=where, values=dict(zip(names, row, strict=True)))


def _names_in(rows: Iterator[list[str]], path: Path) -> list[str]:
    """Return the names of the columns, which the first row has."""
    try:
        names = next(rows, [])
    except csv.Error as error:
        raise DataError(
            f"`source` must have the names of its columns in the first row; {path} has none "
            f"({error}); correct it"
        ) from None
    if len(set(names)) < len(names):
        raise DataError(
            f"`source` must have names in its first row, each once; {path} has "
            f"{', '.join(names):.200}; add or rename them"
        )
    return names


def _rows_with_places(rows: Any, path: Path) -> Iterator[tuple[str, list[str] | DataError]]:
    """Yield the fields of each row, or why it has none, with where it begins.

    Raises:
        DataError: a quote has no end, and nobody knows which rows it took.
    """
    while True:
        where = f"line {rows.line_num + 1} of {path}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            fault = DataError(
                f"`source` must have quotes as CSV has them; {where} has not ({error}); correct it"
            )
            if "unexpected end" in str(error):
                raise fault from None
            yield where, fault
            continue
        if row:
            yield where, _without_zeros(row, where)


def _without_zeros(row: list[str], where: str) -> list[str] | DataError:
    try:
        check_zero_bytes("".join(row), where=where)
    except DataError as error:
        return error
    return row
