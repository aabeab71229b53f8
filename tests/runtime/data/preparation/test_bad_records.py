"""Bad records end a preparation, or are counted and listed; the others are read."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import OnBad, Source, prepare
from jaxpipe.runtime.data.preparation.bad_records import BAD_RECORDS

GOOD = [b'{"text": "one"}', b'{"text": ""}', b'{"text": "two"}']
BAD = [
    b"{",
    b'{"text": null}',
    b'{"text": NaN}',
    b'["a"]',
    b'{"text": "\\ud800"}',
    b'"\xff"',
    b"{}",
]


def test_the_first_ends_the_preparation_by_default(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for bad in BAD:
        path.write_bytes(b"\n".join((*GOOD, bad, GOOD[0])))
        with pytest.raises(DataError, match=r"line 4 of .*; or set `on_bad` to skip"):
            prepare(Source(path=path), tmp_path / "d")
        assert list((tmp_path / "d").iterdir()) == []


def test_all_are_counted_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(line for bad in BAD for line in (*GOOD, bad)))
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(GOOD * len(BAD)))
    dataset = prepare(Source(path=path, on_bad=OnBad.SKIP), tmp_path / "d")
    good = prepare(Source(path=tmp_path / "good.jsonl"), tmp_path / "g")
    assert np.array_equal(np.asarray(dataset.train), np.asarray(good.train))
    bad = [json.loads(line) for line in (tmp_path / "d" / BAD_RECORDS).read_text().splitlines()]
    assert [record["where"] for record in bad] == [
        f"line {4 * n} of {path}" for n in range(1, len(BAD) + 1)
    ]
    empty, skipped, *_ = caplog.messages
    assert empty == "7 of 28 records are empty: each is an end of text alone"
    assert skipped.startswith("7 of 28 records are bad and left out, see ")
    assert skipped.count("; correct it") == 3


def test_a_text_file_that_is_not_utf_8_is_left_out_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"good begin" * 10**6 + b"\xff")
    source = Source(path=tmp_path, on_bad=OnBad.SKIP)
    assert ["".join(piece.text for piece in doc) for doc in source.documents()] == ["good"]


def test_both_splits_are_listed_and_leftovers_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n{\n')
    out = tmp_path / "d"
    out.mkdir()
    (out / BAD_RECORDS).write_text("of a preparation that was killed\n")
    (out / "tokens.partial").write_bytes(b"half")
    source = Source(path=tmp_path / "*.jsonl", on_bad=OnBad.SKIP)
    prepare(source, out)
    assert (out / BAD_RECORDS).read_text().count('{"where": "line 2 of ') == 2
    assert "killed" not in (out / BAD_RECORDS).read_text()
    assert not list(out.glob("*.partial"))
    assert "was interrupted while it was prepared: it is prepared from the beginning" in caplog.text


def test_nothing_but_bad_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{\n{\n")
    source = Source(path=tmp_path / "a.jsonl", on_bad=OnBad.SKIP)
    with pytest.raises(DataError, match="has none in its 2 records, of which 2 are bad; name"):
        prepare(source, tmp_path / "d")
