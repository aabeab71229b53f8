"""Which files of a folder are read, held out and left out, and why."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import RecordLayout, Source, prepare
from jaxpipe.runtime.data.preparation.source_files import source_files


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": f"text of {name}"}) + "\n")


def names(paths: tuple[Path, ...], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_every_file_of_a_folder_is_read_or_has_a_reason(tmp_path: Path) -> None:
    trained = ("TRAIN.JSONL", "a.Txt", "b/latest.csv.gz", "b/contest.ndjson", "evaluator.md")
    held_out = ("data/validation-00000-of-00001.parquet", "dev.jsonl", "my_val.tsv")
    reasons = {
        "README.md": "about the data",
        "LICENSE": "about the data",
        "dataset_infos.json": "about the data",
        ".cache/x.txt": "hidden",
        "__MACOSX/a.txt": "hidden",
        "data/test-00000-of-00001.parquet": "the test split",
        "test/a.jsonl": "the test split",
        "Eval.jsonl": "the test split",
        "a.py": ".py is not read",
        "a.zip": ".zip is not read",
        "notes": "no format in its name",
    }
    write(tmp_path, *trained, *held_out, *reasons)
    files = source_files(tmp_path)
    assert names(files.train, tmp_path) == sorted(trained)
    assert names(files.held_out, tmp_path) == sorted(held_out)
    assert dict(files.left_out) == reasons
    assert "README.md (about the data)" in files.report
    assert files.report.endswith(" and 1 more")


def test_a_file_that_is_named_is_read(tmp_path: Path) -> None:
    write(tmp_path, "test.jsonl", "README.md")
    for name in ("test.jsonl", "README.md"):
        assert source_files(tmp_path / name).train == (tmp_path / name,)


def test_a_pattern_has_the_splits_of_a_folder_unless_it_names_one(tmp_path: Path) -> None:
    write(tmp_path, "train-0.jsonl", "train-1.jsonl", "test-0.jsonl", "valid.jsonl", "c.txt")
    files = source_files(tmp_path / "*.jsonl")
    assert names(files.train, tmp_path) == ["train-0.jsonl", "train-1.jsonl"]
    assert names(files.held_out, tmp_path) == ["valid.jsonl"]
    assert names(source_files(tmp_path / "test*").train, tmp_path) == ["test-0.jsonl"]
    with pytest.raises(DataError, match=r"must hold files to train on .*\*\.csv has none; name"):
        source_files(tmp_path / "*.csv")


def test_a_folder_of_test_files_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "test.jsonl", "dev.jsonl")
    with pytest.raises(
        DataError,
        match=r"has none, but dev\.jsonl \(the held-out split\), test\.jsonl",
    ):
        source_files(tmp_path)


def test_the_validation_split_of_a_folder_is_held_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "train.jsonl", "validation.jsonl", "test.jsonl")
    dataset = prepare(Source(path=tmp_path), tmp_path / "d")
    assert np.asarray(dataset.train).tobytes() == b"text of train.jsonl\0"
    assert np.asarray(dataset.eval).tobytes() == b"text of validation.jsonl\0"
    assert caplog.messages == [
        "held out: validation.jsonl",
        "left out: test.jsonl (the test split)",
    ]


def test_a_validation_of_its_own_takes_the_place_of_the_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "s/train.jsonl", "s/validation.jsonl", "mine.jsonl")
    validation = Source(path=tmp_path / "mine.jsonl")
    dataset = prepare(Source(path=tmp_path / "s"), tmp_path / "d", validation=validation)
    assert np.asarray(dataset.train).tobytes() == b"text of s/train.jsonl\0"
    assert np.asarray(dataset.eval).tobytes() == b"text of mine.jsonl\0"
    assert caplog.messages == ["left out: validation.jsonl (another is held out)"]


def test_splits_of_a_saved_dataset(tmp_path: Path) -> None:
    for split in ("train", "validation", "test", "extra"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text('{"_data_files": [{"filename": "0.arrow"}]}')
    (tmp_path / "dataset_dict.json").write_text("{}")
    files = source_files(tmp_path)
    assert names(files.train, tmp_path) == ["train/0.arrow"]
    assert names(files.held_out, tmp_path) == ["validation/0.arrow"]
    assert dict(files.left_out) == {"extra": "another split", "test": "the test split"}


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("hf://datasets/a/b/c.parquet", "hf download --repo-type dataset a/b --local-dir FOLDER"),
        ("s3://bucket/x", "aws s3 cp --recursive s3://bucket/x FOLDER"),
        ("gs://bucket/x", "gcloud storage cp -r gs://bucket/x FOLDER"),
        ("https://host/a.jsonl", "curl -LO https://host/a.jsonl"),
        ("roneneldan/TinyStories", "hf download --repo-type dataset roneneldan/TinyStories"),
    ],
)
def test_what_is_elsewhere_is_refused_with_its_download(path: str, command: str) -> None:
    with pytest.raises(DataError, match=command):
        source_files(Path(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"name": "site", "version": "1.0"}', "one object in JSON, without `text`"),
        ('\n{"a": {"text": "no field of its own"}}\n', "one object in JSON, without `text`"),
        ('["a", "b"]', "a list in JSON, of no objects"),
        ("[1, 2]", "a list in JSON, of no objects"),
        ("3", "JSON without objects"),
    ],
)
def test_json_that_is_no_record_is_left_out_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, reason: str
) -> None:
    write(tmp_path, "a.jsonl", "one/document.json", "validation.jsonl")
    for name in ("0-first.json", "package.json", "valid.json"):
        (tmp_path / name).write_text(content)
    prepare(Source(path=tmp_path), tmp_path / "d")
    (message,) = (text for text in caplog.messages if text.startswith("left out"))
    stray = ", ".join(f"{name} ({reason})" for name in ("0-first.json", "package.json"))
    assert message == f"left out: {stray}, valid.json ({reason})"
    with pytest.raises(DataError):  # a file that is named is data
        prepare(Source(path=tmp_path / "package.json"), tmp_path / "e")


@pytest.mark.parametrize(
    "content", ['{"text": 3}', '{"a": 1}{"a": 2}', '[{"a": 1}]', '{"a": ', '[{"text": "a"', "]"]
)
def test_records_that_are_bad_are_no_stray_files(tmp_path: Path, content: str) -> None:
    write(tmp_path, "a.jsonl")
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(DataError, match=r"b\.json"):
        prepare(Source(path=tmp_path), tmp_path / "d")


def test_a_stray_file_does_not_decide_the_layout(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text('{"name": "site"}')
    (tmp_path / "1.json").write_text('[{"prompt": "a", "completion": "b"}]')
    fields = Source(path=tmp_path).recognised().fields
    assert fields.chat is RecordLayout.PROMPT_COMPLETION
    alone = tmp_path / "alone"
    write(alone, "readme.txt")
    (alone / "readme.txt").rename(alone / "package.json")
    (alone / "package.json").write_text('{"name": "site"}')
    with pytest.raises(DataError, match=r"but package\.json \(one object in JSON, without `text`"):
        Source(path=alone).files()
