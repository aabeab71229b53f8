"""Records of JSON lines, Parquet and saved datasets: their documents, and what counts in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import Fields, RecordLayout, Source, mixture_of, open_dataset, prepare
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.data.preparation import compression
from jaxpipe.runtime.data.preparation.document import Piece

ROWS = [{"text": f"text {n}", "p": f"{n} + {n} = ", "c": str(2 * n)} for n in range(40)]
PAIRS = Fields(prompt="p", completion="c")


def write_lines(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(folder: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), folder / "rows.parquet", row_group_size=7)
    return folder / "rows.parquet"


def write_saved(folder: Path) -> Path:
    """Write what `save_to_disk` writes: two shards, and the record that names them."""
    arrow = pytest.importorskip("pyarrow")
    saved = folder / "saved"
    saved.mkdir()
    names = [f"data-0000{n}-of-00002.arrow" for n in range(2)]
    for name, rows in zip(names, (ROWS[:15], ROWS[15:]), strict=True):
        table = arrow.Table.from_pylist(rows)
        with arrow.ipc.new_stream(str(saved / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (saved / "state.json").write_text(json.dumps(state))
    return saved


@pytest.mark.parametrize("write", [write_lines, write_parquet, write_saved])
def test_all_formats_give_the_same_documents(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    read = [tuple(document) for document in Source(path=path).documents()]
    assert read == [(Piece(row["text"]),) for row in ROWS]
    pairs = [tuple(document) for document in Source(path=path, fields=PAIRS).documents()]
    assert pairs == [(Piece(row["p"], False), Piece(row["c"])) for row in ROWS]


def test_prompts_do_not_count(tmp_path: Path) -> None:
    dataset = prepare(
        Source(path=write_lines(tmp_path), fields=PAIRS), tmp_path / "d", eval_fraction=0.25
    )
    assert dataset.counted is not None
    assert dataset.documents is not None
    text = dataset.tokenizer.decode(
        np.asarray(dataset.train)[np.asarray(dataset.counted.train) == 1]
    )
    documents = text.split("\0")[:-1]
    assert documents == [row["c"] for row in ROWS[: len(documents)]]
    # Whole documents are held out.
    assert len(documents) == len(dataset.documents.train) == 30
    assert dataset.tokenizer.decode(np.asarray(dataset.eval)).startswith("30 + 30 = 60\0")
    windows = mixture_of([dataset], (1.0,), sequence=11)
    assert windows.masked
    read = windows.eval_samples(index=0, batch=1)
    assert bytes(read.inputs[0].tolist()) == b"30 + 30 = 6"
    assert read.targets[0].tolist() == [IGNORED] * 9 + [ord("6"), ord("0")]


def test_messages_of_the_assistant_count_alone() -> None:
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]
    pieces = list(Fields(messages="m").document({"m": messages}, where="line 1"))
    assert [piece.text for piece in pieces if piece.counts] == ["hello\n\n"]
    assert "".join(piece.text for piece in pieces) == (
        "system:\nshort\n\nuser:\nhi\n\nassistant:\nhello\n\n"
    )


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        (
            PAIRS,
            {"p": "a"},
            r"under `c`: in line 2 of .*rows\.jsonl it is missing, .* are p;",
        ),
        (PAIRS, {"p": 1, "c": "b"}, "`p` must be a list of messages: in line 2 of .* it is 1;"),
        (Fields(messages="m"), {"m": "hi"}, "`m` must be a list of messages: in line 2 .*'hi'"),
        (Fields(messages="m"), {"m": []}, "`m` must be a list of messages"),
        (
            Fields(messages="m"),
            {"m": ["hi"]},
            "`message` must be an object with `role` and `content`: in message 1 in line 2 .*'hi'",
        ),
        (
            Fields(messages="m"),
            {"m": [{"role": "x", "content": ""}]},
            "`role` must be one of system, .*: in message 1 in line 2 of .* it is 'x'",
        ),
        (
            Fields(messages="m"),
            {"m": [{"role": "user"}]},
            "`content` must be a text, or parts of text: in message 1 in line 2",
        ),
    ],
)
def test_a_wrong_record_is_named(
    fields: Fields, row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    good = {"p": "a", "c": "b", "m": [{"role": "user", "content": "a"}]}
    path = write_lines(tmp_path, [good, row])
    with pytest.raises(DataError, match=message):
        list(Source(path=path, fields=fields).documents())


def test_fields_that_exclude_each_other() -> None:
    with pytest.raises(DataError, match="`prompt_field` and `completion_field` belong together"):
        Fields(prompt="p")
    with pytest.raises(DataError, match=r"give either"):
        Fields(prompt="p", completion="c", messages="m")
    with pytest.raises(
        DataError, match=r"`messages_field` \(m\) is for .* layout messages, not alp"
    ):
        Fields(messages="m", layout=RecordLayout.ALPACA)


@pytest.mark.parametrize("write", [write_parquet, write_saved])
def test_a_missing_column_is_named(write: Any, tmp_path: Path) -> None:
    source = Source(path=write(tmp_path), fields=Fields(text="body"))
    with pytest.raises(DataError, match=r"a column `body`; .* has text, p, c; name another field"):
        list(source.documents())


def test_files_that_are_none_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"intact file of Parquet or Arrow; .*a\.parquet is not"):
        list(Source(path=tmp_path / "a.parquet").documents())
    saved = write_saved(tmp_path)
    (saved / "data-00001-of-00002.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"00001-of-00002\.arrow is not"):
        list(Source(path=saved).documents())


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(compression, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"needs pyarrow, .* `pip install jaxpipe\[arrow\]`"):
        list(Source(path=tmp_path / "a.parquet").documents())


@pytest.mark.parametrize(
    "state",
    [
        "{",
        "{}",
        '{"_data_files": 3}',
        '{"_data_files": [{"filename": "../x.arrow"}]}',
        '{"_data_files": [{"filename": "/etc/x.arrow"}]}',
        '{"_data_files": [{"filename": "x.txt"}]}',
        '{"_data_files": [{}]}',
    ],
)
def test_no_name_of_a_record_leads_out_of_its_folder(state: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(DataError, match=r"as `save_to_disk` writes it; .*state\.json"):
        list(Source(path=tmp_path).documents())


def test_a_saved_dataset_without_a_split_to_train_on(tmp_path: Path) -> None:
    write_saved(tmp_path)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["saved"]}')
    with pytest.raises(
        DataError, match=r"a split `train`; .* has saved; name the folder of one split"
    ):
        list(Source(path=tmp_path).documents())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-documents", lambda a: a[:-1], "does not end at token|holds"),
        ("train-counted", lambda a: a[:-1], "holds"),
    ],
)
def test_wrong_arrays_of_a_split(name: str, change: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    prepare(Source(path=write_lines(tmp_path), fields=PAIRS), folder)
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", change(array))
    with pytest.raises(DataError, match=message):
        open_dataset(folder, verify=False)


def test_the_ends_of_documents_are_kept_and_cut_at_the_seams(tmp_path: Path) -> None:
    dataset = prepare(Source(path=write_lines(tmp_path)), tmp_path / "d", eval_fraction=0.25)
    assert dataset.documents is not None
    for tokens, ends in (
        (dataset.train, dataset.documents.train),
        (dataset.eval, dataset.documents.eval),
    ):
        separators = np.flatnonzero(np.asarray(tokens) == 0) + 1
        assert sorted({*separators.tolist(), len(tokens)}) == np.asarray(ends).tolist()


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        (Fields(), {"text": "a\0b"}),
        (PAIRS, {"p": "a\0", "c": "b"}),
        (PAIRS, {"p": "a", "c": "\0"}),
        (
            Fields(layout=RecordLayout.MESSAGES),
            {"messages": [{"role": r, "content": "a\0"} for r in ("user", "assistant")]},
        ),
    ],
)
def test_a_zero_byte_in_a_text_is_no_end_of_a_document(
    tmp_path: Path, fields: Fields, record: dict[str, Any]
) -> None:
    source = Source(path=write_lines(tmp_path, [record]), fields=fields)
    with pytest.raises(DataError, match=r"` must be text without zero bytes; .*line 1 of .* has "):
        list(source.documents())
