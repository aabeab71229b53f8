"""Epochs become steps, and steps are said in epochs, from the headers of the datasets."""

from pathlib import Path

import numpy as np
import pytest

from jaxpipe.config import epochs_line, load_config
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.data import Labelled, Source, mixture_of, prepare, prepare_labelled


def config_file(folder: Path, train: str, *, data: str = 'folder = "d"', extra: str = "") -> Path:
    path = folder / "c.toml"
    data = data.replace('"d', f'"{folder}/d')
    path.write_text(
        f'[run]\nfolder = "run"\n[data]\n{data}\n[model]\nnum_layers = 1\ndim = 8\nnum_heads = 2\n'
        f"sequence = 8\nvocabulary = 256\n[train]\nbatch = 3\n{train}\n{extra}"
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a dataset of 100 tokens to train on, and none held out."""
    (tmp_path / "a.jsonl").write_text('{"text": "123456789"}\n' * 10)
    prepare(Source(path=tmp_path / "a.jsonl"), tmp_path / "d", eval_fraction=0.0)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        ('folder = "d"', 12),  # 100 / 8
        ('folder = "d"\npack = true', 20),  # a document of 10 tokens is cut into two rows
        ('sources = [{folder = "d"}, {folder = "d2"}]', 24),
    ],
)
def test_epochs_are_steps(data: str, samples: int, folder: Path) -> None:
    prepare(Source(path=folder / "a.jsonl"), folder / "d2", eval_fraction=0.0)
    for epochs, steps in ((1, -(-samples // 3)), (2.5, -(-5 * samples // 6))):
        config = load_config(config_file(folder, f"epochs = {epochs}", data=data))
        assert (config.train.steps, config.train.epochs) == (steps, None)
    line = epochs_line(load_config(config_file(folder, "steps = 8", data=data)))
    assert line == f"8 steps of 3 samples = {24 / samples:.3g} epochs of {samples} samples"


def test_a_setting_wins_over_the_file(folder: Path) -> None:
    assert load_config(config_file(folder, "epochs = 2"), ["train.steps=5"]).train.steps == 5
    assert load_config(config_file(folder, "steps = 5"), ["train.epochs=2"]).train.steps == 8


def test_islands_take_whole_outer_steps(folder: Path) -> None:
    path = config_file(folder, "epochs = 2", extra="[outer]\nislands = 2\nevery = 5\n")
    assert load_config(path).train.steps == 10


def test_what_cannot_be_counted_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"`train\.epochs` \(2\) takes the place of"):
        load_config(config_file(folder, "epochs = 2\nsteps = 5"))
    missing = config_file(folder, "epochs = 2", data='folder = "d3"')
    with pytest.raises(ConfigError, match=r"`train\.epochs` \(2\) needs datasets .* set `train.st"):
        load_config(missing)
    assert epochs_line(load_config(missing, ["train.steps=5"])) is None
    with pytest.raises(ConfigError, match=r"`train\.epochs` \(1e\+09\) must be of fewer samples"):
        load_config(config_file(folder, "epochs = 1e9"))


def test_labelled_samples_are_counted(tmp_path: Path) -> None:
    samples = Labelled(
        inputs=np.zeros((20, 8), np.uint8),
        labels=(np.arange(20) % 2).astype(np.uint8),
        classes=("even", "odd"),
        source="numbers",
    )
    dataset = prepare_labelled(samples, tmp_path / "d", eval_fraction=0.0)
    assert (len(dataset.train), len(dataset.eval)) == (20, 0)
    assert load_config(config_file(tmp_path, "epochs = 3")).train.steps == 20
    assert mixture_of([dataset], (1.0,), sequence=8, evaluates=False).eval == ()
