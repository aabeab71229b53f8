"""Documents come in a fixed order, whole, from files, folders and Python itself."""

from pathlib import Path

import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import Fields, Source
from jaxpipe.runtime.data.preparation import source


def documents(origin: Source) -> list[str]:
    return ["".join(piece.text for piece in document) for document in origin.documents()]


def test_a_text_file_is_one_document_with_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("né\r\n\nend\r".encode())
    assert documents(Source(path=path)) == ["né\r\n\nend\r"]


def test_a_large_file_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_PIECE", 10)
    path = tmp_path / "a.txt"
    path.write_text("one two\nthree four\nfive\n")
    pieces = list(Source(path=path).pieces())
    assert len(pieces) > 1
    assert "".join(pieces) == path.read_text()


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\n\\ud83d\\ude00", "n": [1]}\n\n{"n": {}, "text": "b"}')
    assert documents(Source(path=path)) == ["a\n😀", "b"]


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 1, "body": "b"}\n')
    assert documents(Source(path=path, fields=Fields(text="body"))) == ["b"]


def test_a_folder_is_read_at_all_depths_sorted(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.md").write_text("third")
    (tmp_path / "z.txt").write_text("fourth")
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    (tmp_path / "b" / "c.py").write_text("not text")
    assert documents(Source(path=tmp_path)) == ["first", "second", "third", "fourth"]


def test_the_manual_of_python() -> None:
    manual = documents(Source())
    assert len(manual) > 50
    assert sum(map(len, manual)) > 300_000
    assert manual == documents(Source())
    assert Source().description.startswith("pydoc_data.topics of Python 3.")


@pytest.mark.parametrize(
    "line", ["{", '{"body": "b"}', '{"text": 3}', '["text"]', '{"text": "\\ud800"}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(DataError, match=r"line 2 of .*a\.jsonl"):
        documents(Source(path=path))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_other_encodings_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"text": "n\xe9"}')
    with pytest.raises(DataError, match=r"`source` must be UTF-8; .*convert it with iconv"):
        documents(Source(path=tmp_path / name))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"`source` must be a file, a folder or a pattern; .*none does not"
    ):
        documents(Source(path=tmp_path / "none"))
    with pytest.raises(
        DataError, match=r"`source` must hold files to train on \(\.txt, .* has none; name a file"
    ):
        documents(Source(path=tmp_path))
