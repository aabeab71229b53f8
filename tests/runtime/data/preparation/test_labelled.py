"""Labelled samples: what is prepared is what is opened, and each epoch has every sample once."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import (
    Bytes,
    Labelled,
    draw_glyphs,
    mixture_of,
    open_dataset,
    prepare_labelled,
    read_labelled_text,
    read_pictures,
    sample,
)
from jaxpipe.runtime.data.order.batches import draw, serial_numbers
from jaxpipe.runtime.storage.checksum import seal

LINES = "yes\tgood day\nno\tbad\tday\n\nyes\tg\nmaybe\t" + "x" * 50 + "\n"


def numbered(count: int) -> Labelled:
    """Return samples whose input is their number, of the class that is its last bit."""
    numbers = np.arange(count)
    return Labelled(
        inputs=np.repeat(numbers[:, None], 3, axis=1).astype(np.uint8),
        labels=(numbers % 2).astype(np.uint8),
        classes=("even", "odd"),
        source="numbers",
    )


def text_file(folder: Path, text: str = LINES) -> Path:
    path = folder / "lines.tsv"
    path.write_text(text)
    return path


def test_every_sample_is_in_one_split_with_its_own_label(tmp_path: Path) -> None:
    dataset = prepare_labelled(numbered(50), tmp_path / "d", eval_fraction=0.2)
    labels = dataset.labels
    assert labels is not None
    assert (len(dataset.train), len(dataset.eval)) == (40, 10)
    inputs = np.concatenate([dataset.train, dataset.eval])
    assert sorted(inputs[:, 0]) == list(range(50))
    assert (np.concatenate([labels.train, labels.eval]) == inputs[:, 0] % 2).all()
    assert set(labels.eval) == {0, 1}
    assert labels.classes == ("even", "odd")
    assert isinstance(dataset.train, np.memmap)


def test_equal_samples_give_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        prepare_labelled(numbered(20), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == [
        "dataset.json",
        "eval-blocks.npy",
        "eval-labels.npy",
        "eval.npy",
        "train-blocks.npy",
        "train-labels.npy",
        "train.npy",
    ]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", ["train.npy", "eval-labels.npy"])
def test_a_flipped_byte_is_found(name: str, tmp_path: Path) -> None:
    prepare_labelled(numbered(20), tmp_path / "d")
    path = tmp_path / "d" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"{name} is not: its content does not match"):
        open_dataset(tmp_path / "d")


def test_a_label_without_a_class_is_refused(tmp_path: Path) -> None:
    prepare_labelled(numbered(20), tmp_path / "d")
    path = tmp_path / "d" / "dataset.json"
    record = json.loads(path.read_bytes())
    assert record["format"] == 2, "older versions must refuse it by its number"
    record = {k: v for k, v in record.items() if k not in ("checksum", "format")}
    record["labels"]["classes"] = ["even"]
    path.write_bytes(seal(record, version=2))
    with pytest.raises(DataError, match="labels of no class"):
        open_dataset(tmp_path / "d")


@pytest.mark.parametrize("fraction", [0.01, 1.0, 2.0, float("nan")])
def test_a_fraction_that_leaves_a_split_empty_is_refused(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`eval_fraction` must hold out some of the 20 samples"):
        prepare_labelled(numbered(20), tmp_path / "d", eval_fraction=fraction)


def test_a_dataset_is_not_overwritten(tmp_path: Path) -> None:
    prepare_labelled(numbered(20), tmp_path / "d")
    with pytest.raises(DataError, match="must not hold a dataset already"):
        prepare_labelled(numbered(20), tmp_path / "d")


def test_labelled_text_starts_with_the_position_that_is_read_and_is_filled(tmp_path: Path) -> None:
    read = read_labelled_text(text_file(tmp_path), tokenizer=Bytes(), sequence=8)
    assert read.classes == ("maybe", "no", "yes")
    assert read.labels.tolist() == [2, 1, 2, 0]
    assert [bytes(row) for row in read.inputs] == [
        b"\0good da",
        b"\0bad\tday",
        b"\0g\0\0\0\0\0\0",
        b"\0xxxxxxx",
    ]


@pytest.mark.parametrize("line", ["no tab", "\ttext", "label\t", "label"])
def test_a_line_without_label_or_text_is_named(line: str, tmp_path: Path) -> None:
    path = text_file(tmp_path, f"a\tb\n{line}\n")
    with pytest.raises(DataError, match="a tab and a text in each line; line 2 of"):
        read_labelled_text(path, tokenizer=Bytes(), sequence=8)


def test_text_that_cannot_be_read_or_has_no_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be a readable file of UTF-8"):
        read_labelled_text(tmp_path / "none", tokenizer=Bytes(), sequence=8)
    (tmp_path / "latin").write_bytes(b"a\t\xe9\n")
    with pytest.raises(DataError, match="must be a readable file of UTF-8"):
        read_labelled_text(tmp_path / "latin", tokenizer=Bytes(), sequence=8)
    with pytest.raises(DataError, match=r"`sequence` must be at least 2, .* not 1"):
        read_labelled_text(text_file(tmp_path), tokenizer=Bytes(), sequence=1)


def test_one_class_is_refused(tmp_path: Path) -> None:
    path = text_file(tmp_path, "a\tb\n" * 20)
    read = read_labelled_text(path, tokenizer=Bytes(), sequence=8)
    with pytest.raises(DataError, match="at least 2 classes, not 1"):
        prepare_labelled(read, tmp_path / "d")


def test_glyphs_are_those_of_the_seed_and_differ() -> None:
    pytest.importorskip("matplotlib")
    glyphs, again, other = (draw_glyphs(num_samples=20, size=16, seed=s) for s in (0, 0, 1))
    assert glyphs.inputs.shape == (20, 16, 16, 3)
    assert glyphs.labels.tolist() == [*range(10), *range(10)]
    assert (glyphs.inputs == again.inputs).all()
    assert (glyphs.inputs != other.inputs).any(axis=(1, 2, 3)).all()
    assert (glyphs.inputs.std(axis=(1, 2)).max(axis=1) > 15).all(), "a glyph stands out"


def test_pictures_of_a_folder_get_the_names_of_its_subfolders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for place, mode, colour in [
        ("cat/1.png", "RGB", (255, 0, 0)),
        ("cat/deep/2.PNG", "L", 128),
        ("dog/1.jpg", "RGB", (0, 0, 255)),
    ]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        image.new(mode, (20, 10), colour).save(tmp_path / place)
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    read = read_pictures(tmp_path, size=4)
    assert read.classes == ("cat", "dog")
    assert read.labels.tolist() == [0, 0, 1]
    assert read.inputs.shape == (3, 4, 4, 3)
    assert read.inputs[0].reshape(-1, 3).tolist() == [[255, 0, 0]] * 16
    assert read.inputs[1].reshape(-1, 3).tolist() == [[128, 128, 128]] * 16


def test_folders_without_pictures_and_broken_ones_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    with pytest.raises(DataError, match="a folder of subfolders with pictures"):
        read_pictures(tmp_path, size=4)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"intact pictures; .*1\.png is none"):
        read_pictures(tmp_path, size=4)
    with pytest.raises(DataError, match="`size` must be from 4 to 4,096 pixels, not 3"):
        read_pictures(tmp_path, size=3)
    with pytest.raises(DataError, match="`size` must be from 4 to 4,096 pixels, not 100000"):
        read_pictures(tmp_path, size=100_000)


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (7, 3), (10, 10), (3, 8)])
def test_each_epoch_has_every_sample_once(count: int, batch: int) -> None:
    steps = range(count)  # `batch` epochs

    def numbers(step: int, rows: range | None = None) -> np.ndarray:
        return draw(count, serial_numbers(step=step, batch=batch, rows=rows), seed=5)[0]

    drawn = [numbers(step) for step in steps]
    epochs = np.concatenate(drawn).reshape(batch, count)
    assert (np.sort(epochs, axis=1) == np.arange(count)).all()
    assert count < 7 or len({tuple(epoch) for epoch in epochs}) == batch
    parts = [numbers(2 % count, range(n, n + 1)) for n in range(batch)]
    assert np.concatenate(parts).tolist() == drawn[2 % count].tolist()


def test_evaluation_batches_are_consecutive(tmp_path: Path) -> None:
    dataset = prepare_labelled(numbered(20), tmp_path / "d", eval_fraction=0.3)
    mixture = mixture_of([dataset], (1.0,), sequence=1)
    assert mixture.num_eval_batches(batch=3) == 2
    batches = [mixture.eval_samples(index=i, batch=3).rows for i in range(2)]
    np.testing.assert_array_equal(np.concatenate(batches), dataset.eval)


def test_labelled_samples_are_no_stream_of_tokens(tmp_path: Path) -> None:
    dataset = prepare_labelled(numbered(20), tmp_path / "d")
    with pytest.raises(DataError, match="must hold text, not labelled samples"):
        sample(dataset.train, seed=0, step=0, batch=1, sequence=2)
