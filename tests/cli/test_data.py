"""`jaxpipe data prepare`: from text to a dataset that can be opened."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.cli.main import main
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.data.dataset.record import read_record, write_record

TEXT = "a pipeline has stages, and a stage has layers; " * 200


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a file with some text in it."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def prepare(text: Path, *options: str) -> int:
    return main(
        ["data", "prepare", "--source", str(text), "--out", str(text.parent / "d"), *options]
    )


def test_bytes_are_the_default(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(text) == 0
    dataset = open_dataset(text.parent / "d")
    assert dataset.vocabulary == 256
    assert len(dataset.train) + len(dataset.eval) == len(TEXT) + 1
    assert capsys.readouterr().out.startswith("text.txt: ")


def test_a_vocabulary_is_trained_and_can_be_used_again(text: Path) -> None:
    assert prepare(text, "--vocabulary", "280") == 0
    trained = open_dataset(text.parent / "d")
    assert trained.vocabulary == 280
    assert len(trained.train) < len(TEXT) / 3
    words = text.parent / "d" / "tokenizer.json"
    assert prepare(text, "--out", str(text.parent / "again"), "--tokenizer", str(words)) == 0
    again = open_dataset(text.parent / "again")
    assert np.array_equal(again.train, trained.train)


def test_a_dataset_is_not_overwritten(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(text) == 0
    assert prepare(text) == 2
    assert "`--out` must not hold a dataset already" in capsys.readouterr().err
    assert prepare(text, "--if-missing") == 0


def test_a_dataset_of_other_options_does_not_count_as_there(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(text, "--vocabulary", "280") == 0
    same = ("--vocabulary", "280", "--if-missing")
    assert prepare(text, *same) == 0
    moved, other = text.rename(text.with_name("moved.txt")), text.with_name("other.txt")
    other.write_text("others")
    moved_source = ("--source", str(moved))
    assert prepare(text, *moved_source, *same) == 0
    tokenizer = str(text.parent / "d")
    for words, refusal in (
        (("--vocabulary", "300"), "`--vocabulary` (300) was 280, where "),
        ((), "`--vocabulary` (not given) was 280, where "),
        (
            ("--tokenizer", tokenizer),
            "`--tokenizer` (d) was not given, `--vocabulary` (not given)",
        ),
        (
            ("--vocabulary", "280", "--source", str(other)),
            "`--source` (other.txt) was text.txt",
        ),
        (("--vocabulary", "280", "--eval-fraction", "0.2"), "`--eval-fraction` (0.2) was 0.1"),
    ):
        assert prepare(text, *moved_source, *words, "--if-missing") == 2
        assert refusal in capsys.readouterr().err
    moved.write_text("changed")
    moved.rename(text)
    assert prepare(text, *same) == 2
    assert "`--source` (text.txt) has changed, where " in capsys.readouterr().err
    text.unlink()  # it cannot be compared
    assert prepare(text, *same) == 0


def test_a_dataset_of_an_older_version_is_compared_as_far_as_its_record_says(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = text.parent / "d"
    assert prepare(text, "--vocabulary", "280") == 0
    write_record(dataset, replace(read_record(dataset), request=None))
    assert prepare(text, "--vocabulary", "300", "--if-missing") == 0  # the text may be too short
    other = text.with_name("other.txt")
    other.write_text("others")
    for words, refusal in (
        (("--vocabulary", "270"), "`--vocabulary` (270) was 280"),
        ((), "`--tokenizer` (not given) was byte pairs, vocabulary 280"),
        (("--vocabulary", "280", "--source", str(other)), "`--source` (other.txt) was text.txt"),
    ):
        assert prepare(text, *words, "--if-missing") == 2
        assert refusal in capsys.readouterr().err


def test_contradictions_and_missing_text_are_refused(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(text, "--vocabulary", "280", "--tokenizer", "t.json") == 2
    assert "leave out `--vocabulary 280`" in capsys.readouterr().err
    assert prepare(text.with_name("missing.txt")) == 2
    assert "missing.txt does not exist" in capsys.readouterr().err


def test_prompts_are_prepared_and_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"q": "2 + 2 = ", "a": "4"}\n' * 20)
    options = ("--prompt-field", "q", "--completion-field", "a")
    assert prepare(pairs, *options) == 0
    counted = open_dataset(tmp_path / "d").counted
    assert counted is not None
    assert np.asarray(counted.eval).tolist() == [*[0] * 8, 1, 1] * 2
    capsys.readouterr()
    assert prepare(pairs, *options[:2], "--out", str(tmp_path / "e")) == 2
    assert "`--prompt-field` and `--completion-field` belong together" in capsys.readouterr().err


def test_bad_records_and_a_validation_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, other = tmp_path / "a.csv", tmp_path / "b.json"
    records.write_text("text,n\ngood,1\nbad\n")
    other.write_text('[{"text": "held out"}]')
    assert prepare(records, "--validation", str(other)) == 2
    assert "has 1; correct it, or quote a field" in (refusal := capsys.readouterr().err)
    assert "or set `--on-bad` to skip" in refusal
    assert prepare(records, "--validation", str(other), "--on-bad", "skip") == 0
    dataset = open_dataset(tmp_path / "d")
    assert [np.asarray(part).tobytes() for part in (dataset.train, dataset.eval)] == [
        b"good\0",
        b"held out\0",
    ]
    assert (tmp_path / "d" / "bad-records.jsonl").read_text().count("\n") == 1


def test_labelled_validation_has_the_classes_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, other = tmp_path / "a.tsv", tmp_path / "b.tsv"
    lines.write_text("a\tone\nb\ttwo\n")
    other.write_text("b\tthree\n")
    options = ("--kind", "labelled-text", "--sequence", "6", "--validation", str(other))
    assert prepare(lines, *options) == 0
    labels = open_dataset(tmp_path / "d").labels
    assert labels is not None
    assert (labels.classes, labels.eval.tolist()) == (("a", "b"), [1])
    other.write_text("c\tthree\n")
    capsys.readouterr()
    assert prepare(lines, *options, "--out", str(tmp_path / "e")) == 2
    refusal = "`--validation` must have samples of classes of `--source` (a, b), not of 'c'"
    assert refusal in capsys.readouterr().err


def test_labelled_lines_are_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.tsv"
    lines.write_text("".join(f"{i % 2}\tnumber {i}\n" for i in range(40)))
    options = ["--kind", "labelled-text", "--sequence", "12", "--out", str(tmp_path / "d")]
    assert main(["data", "prepare", "--source", str(lines), *options]) == 0
    told = "lines.tsv: 36 samples to train on, 4 held out, 2 classes of shape [12], vocabulary 256"
    assert told in " ".join(capsys.readouterr().out.split())
    labels = open_dataset(tmp_path / "d").labels
    assert labels is not None
    assert labels.classes == ("0", "1")


def test_byte_pairs_are_trained_on_labelled_texts_without_their_labels(tmp_path: Path) -> None:
    lines = tmp_path / "lines.tsv"
    lines.write_text("".join(f"LABEL{i % 2}\tnumber number {i}\n" for i in range(40)))
    options = ["--kind", "labelled-text", "--vocabulary", "262", "--out", str(tmp_path / "d")]
    assert main(["data", "prepare", "--source", str(lines), *options]) == 0
    dataset = open_dataset(tmp_path / "d")
    assert dataset.vocabulary == 262
    assert dataset.train.dtype.name == "uint16"
    assert "LABEL" not in dataset.tokenizer.decode(np.asarray(dataset.train)[0].astype(int))


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--kind", "pictures", "--samples", "30", "--size", "8", "--out", str(tmp_path / "d")]
    assert main(["data", "prepare", *options]) == 0
    dataset = open_dataset(tmp_path / "d")
    assert dataset.train.shape == (27, 8, 8, 3)


def test_labelled_text_needs_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kind", "labelled-text", "--out", str(tmp_path / "d")]
    assert main(["data", "prepare", *options]) == 2
    assert "`--source` must be a file of labelled lines" in capsys.readouterr().err
