"""Which files of a folder are read, held out and left out, and why."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import Source, prepare
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
