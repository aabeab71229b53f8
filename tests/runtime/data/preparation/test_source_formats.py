"""Files of all formats give the documents of their texts; others are refused by name."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import Fields, Source
from jaxpipe.runtime.data.preparation import record_rows
from jaxpipe.runtime.data.preparation.json_values import values_in

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

# CSV has no text for a zero byte; JSON has.
TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    min_size=1,
    max_size=5,
)
Records = list[dict[str, Any]]


def json_lines(records: Records, *, ascii_only: bool = True) -> bytes:
    lines = (json.dumps(record, ensure_ascii=ascii_only) + "\n" for record in records)
    return "".join(lines).encode()


def delimited(records: Records, delimiter: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["text", "n"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue().encode()


def table(write: Callable[[Any, io.BytesIO], object]) -> Callable[[Records], bytes]:
    def written(records: Records) -> bytes:
        file = io.BytesIO()
        write(pyarrow.Table.from_pylist(records), file)
        return file.getvalue()

    return written


def stream(rows: Any, file: io.BytesIO) -> None:
    with pyarrow.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)


def zstandard(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


WRITTEN: dict[str, Callable[[Records], bytes]] = {
    "a.jsonl": json_lines,
    "a.NDJSON": lambda records: json_lines(records, ascii_only=False),
    "lines.json": json_lines,
    "list.json": lambda records: json.dumps(records).encode(),
    "indented.json": lambda records: json.dumps(records, indent=2).encode(),
    "objects.json": lambda records: "\n".join(json.dumps(r, indent=1) for r in records).encode(),
    "utf-16.jsonl": lambda records: json_lines(records, ascii_only=False).decode().encode("utf-16"),
    "no_suffix": json_lines,
    "a.csv": lambda records: delimited(records, ","),
    "semicolons.csv": lambda records: delimited(records, ";"),
    "marked.csv": lambda records: b"\xef\xbb\xbf" + delimited(records, ","),
    "a.tsv": lambda records: delimited(records, "\t"),
    "a.parquet": table(parquet.write_table),
    "a.feather": table(feather.write_feather),
    "a.arrow": table(stream),
    "parquet_without_suffix": table(parquet.write_table),
    "a.jsonl.gz": lambda records: gzip.compress(json_lines(records), mtime=0),
    "a.csv.xz": lambda records: lzma.compress(delimited(records, ",")),
    "a.json.bz2": lambda records: bz2.compress(json.dumps(records).encode()),
    "a.JSONL.ZST": lambda records: zstandard(json_lines(records)),
    "two_parts.jsonl.gz": lambda records: b"".join(
        gzip.compress(json_lines(part), mtime=0) for part in (records[:1], records[1:])
    ),
}


def documents(path: Path, fields: Fields | None = None) -> list[str]:
    source = Source(path=path, fields=fields or Fields())
    return ["".join(piece.text for piece in document) for document in source.documents()]


@settings(max_examples=25)
@given(texts=TEXTS)
def test_all_formats_give_the_same_documents(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    records: Records = [{"text": text, "n": n} for n, text in enumerate(texts)]
    for name, written in WRITTEN.items():
        (folder / name).write_bytes(written(records))
        assert documents(folder / name) == texts, name


@settings(max_examples=40)
@given(
    values=st.lists(
        st.recursive(
            st.text() | st.integers() | st.none(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
        ),
        max_size=4,
    ),
    indent=st.none() | st.integers(0, 2),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_values_are_those_of_the_list_wherever_it_is_cut(
    values: list[Any], indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(values, indent=indent)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(edges)]
    assert [json.loads(value) for value in values_in(parts, most_characters=10**6)] == values
    objects = "\n".join(json.dumps({"a": value}, indent=indent) for value in values)
    read = [json.loads(value) for value in values_in([objects], most_characters=10**6)]
    assert read == [{"a": value} for value in values]


def test_a_list_is_read_in_the_memory_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_rows, "_PART", 16)
    monkeypatch.setattr(record_rows, "MOST_CHARACTERS", 40)
    (tmp_path / "a.json").write_text(json.dumps([{"text": f"number {n}"} for n in range(50)]))
    assert len(documents(tmp_path / "a.json")) == 50
    (tmp_path / "b.json").write_text(json.dumps([{"text": "x" * 50}]))
    with pytest.raises(DataError, match=r"b\.json is not: cannot hold a value of more than 40"):
        documents(tmp_path / "b.json")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + json.dumps({"text": "x" * 99}) + "\n")
    with pytest.raises(DataError, match=r"line 2 of .*cannot hold more than 40 characters"):
        documents(tmp_path / "a.jsonl")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "text".encode("utf-16-le"), "in UTF-16 without .* `iconv -f UTF-16LE -t UTF-8`"),
        ("a.csv", "text\nabc\n".encode("utf-16-be"), "in UTF-16 without .*`iconv -f UTF-16BE"),
        ("a.txt", b"abc\0def", "is binary, since it has zero bytes; name a file with text"),
        ("a.txt", b"a" * 9000 + b"\0", "must be text without zero bytes; .* has one; remove it"),
        (
            "a.csv",
            b"text\n" + b"a\n" * 4000 + b"\0\n",
            "without zero bytes; line 4002 of .* has one",
        ),
        ("a.jsonl", b"PK\x03\x04", "is an archive, or a document of an office program; unpack it"),
        ("a.txt", b"%PDF-1.7", "is PDF; extract its text"),
        ("a.parquet", POINTER, "is a pointer of Git LFS; run `git lfs pull` in its folder"),
        ("a.txt", POINTER, "is a pointer of Git LFS; run `git lfs pull` in its folder"),
        ("a.HTML", b"<p>text</p>", r"is HTML; extract its text, or rename it to \.txt"),
        ("a.yml.gz", gzip.compress(b"- text: a", mtime=0), "is YAML; extract its text"),
        ("a.tar", b"a" * 257 + b"ustar", "is an archive; unpack it"),
        ("a.gz", b"plain text", r"not compressed as its name says \(\.gz\); rename it"),
        (
            "a.txt",
            gzip.compress(bytes(range(97, 120)) * 99, mtime=0)[:-9],
            "intact compressed file; .*ended",
        ),
        ("a.txt", lzma.compress(b"abc" * 99)[:-9], "intact compressed file; .*ended"),
        ("a.txt", zstandard(b"abc" * 99)[:-3], "readable files; .* is not .*[Tt]runcated"),
        ("a.json", b"once upon a time", "JSON objects as records; record 1 of .*a.json has none"),
        ("a.json", b'[{"text": "a"}', r"a\.json is not: cannot find the end of a list or a string"),
        ("a.json", b'["text"]', r"record 1 of .*a\.json has none \(Expected `object`, got `str`"),
        ("a.csv", b'text\n"abc\nd\n', r"quotes as CSV has them; line 2 of .* \(unexpected end"),
        (
            "a.csv",
            b"text,n\na,1\nb\n",
            r"in each row as in its head, 2; line 3 of .* has 1; correct",
        ),
        ("a.csv", b"text,text\na,b\n", "names in its first row, each once; .* has text, text"),
        (
            "a.csv",
            b"body\na\n",
            "under `text`: in line 2 of .* it is missing, and the fields are body",
        ),
        ("a.csv", b"text\nn\xe9\n", r"`text` must be UTF-8; line 2 of .* is not \(byte 0xe9\)"),
        ("a.jsonl", b'{"text": NaN}', "under `text`: in line 1 of .* it is NaN, and"),
        ("a.jsonl", b'{"text": null}', "under `text`: in line 1 of .* it is null, and"),
        ("a.parquet", b"text", "intact file of Parquet or Arrow; .* is not"),
        (
            "a.parquet.gz",
            gzip.compress(b"PAR1aaaa", mtime=0),
            "is Parquet, compressed once more; decompress",
        ),
    ],
)
def test_what_cannot_be_read_is_named(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        documents(tmp_path / name)


def test_faults_in_fields_that_are_not_read_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "n": NaN}\n{"text": "b", "n": "\\ud800"}\n')
    assert documents(path) == ["a", "b"]


def test_a_mark_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    for name, encoding in (("a.txt", "utf-8-sig"), ("b.txt", "utf-16"), ("c.txt", "utf-32")):
        (tmp_path / name).write_bytes("né\r\n".encode(encoding))
        assert documents(tmp_path / name) == ["né\r\n"]


def test_a_column_of_bytes_that_are_no_text_is_one_bad_row(tmp_path: Path) -> None:
    column = pyarrow.array([b"a", b"\xff", b"c"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"must be UTF-8; row 2 of .*a\.parquet is not"):
        documents(tmp_path / "a.parquet")
