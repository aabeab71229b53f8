"""A dataset has to be one for the model: its labels, its shapes, and enough held-out samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import check_data, config_from
from jaxpipe.errors import ConfigError, DataError
from jaxpipe.runtime.data import (
    Dataset,
    Fields,
    Labelled,
    Source,
    byte_level_definition,
    mixture_of,
    prepare,
    prepare_labelled,
    train_byte_pairs,
)

TEXT: dict[str, Any] = {
    "num_layers": 2,
    "dim": 8,
    "num_heads": 2,
    "sequence": 5,
    "vocabulary": 256,
    "tied": False,
    "classes": 2,
}
PICTURES = {**TEXT, "patch": 2, "channels": 1}


def check(
    dataset: Dataset, model: dict[str, Any], *, pack: bool = False, **train: int | None
) -> None:
    config = config_from(
        {
            "run": {"folder": "run"},
            "data": {"folder": "data", "pack": pack},
            "model": model,
            "train": {"batch": 2, "eval_batches": 1, **train},
        }
    )
    assert config.sample.tokens == (0 if config.model.classes else 200)
    check_data(config, [dataset])


def labelled(folder: Path, *shape: int) -> Dataset:
    samples = Labelled(
        inputs=np.zeros((20, *shape), np.uint8),
        labels=(np.arange(20) % 2).astype(np.uint8),
        classes=("even", "odd"),
        source="numbers",
    )
    return prepare_labelled(samples, folder / "d", eval_fraction=0.2)


def test_labelled_text_and_pictures_that_fit_are_accepted(tmp_path: Path) -> None:
    check(labelled(tmp_path / "a", 5), TEXT)
    check(labelled(tmp_path / "b", 7), TEXT | {"sequence": 8}, sequence=7)
    check(labelled(tmp_path / "c", 4, 4, 1), PICTURES)


@pytest.mark.parametrize(
    ("shape", "model", "message"),
    [
        ((5,), TEXT | {"classes": 1}, "`model.classes` .1. .* labels .*, 2;"),
        ((5,), TEXT | {"classes": 0}, "`model.classes` .0. .* labels .*, 2;"),
        ((4,), TEXT, r"the shape that `model` takes, \(5,\), not \(4,\)"),
        ((4, 4, 3), PICTURES, r"takes, \(4, 4, 1\), not \(4, 4, 3\)"),
        ((5,), TEXT | {"vocabulary": 200}, "`model.vocabulary` .200. .*, 256;"),
    ],
)
def test_samples_of_another_kind_are_refused(
    shape: tuple[int, ...], model: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(labelled(tmp_path, *shape), model)


def test_text_without_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("no labels " * 50)
    dataset = prepare(Source(path=tmp_path / "text.txt"), tmp_path / "d")
    with pytest.raises(
        ConfigError, match=r"`model.classes` .2. needs labels, and the dataset data has none"
    ):
        check(dataset, TEXT)


def test_too_few_held_out_samples_are_refused(tmp_path: Path) -> None:
    dataset = labelled(tmp_path, 5)
    with pytest.raises(DataError, match=r"`train.batch` must be at most the 4 samples"):
        check(dataset, TEXT, batch=8)
    with pytest.raises(ConfigError, match=r"`train.eval_batches` is 3, .* only 2 batches of 2"):
        check(dataset, TEXT, eval_batches=3)
    check(dataset, TEXT, eval_batches=None)
    check(dataset, TEXT, batch=8, eval_every=0)


def test_a_held_out_split_without_a_sample_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a few words to train on")
    dataset = prepare(Source(path=tmp_path / "a.txt"), tmp_path / "d", eval_fraction=0.0)
    model = TEXT | {"classes": 0}
    with pytest.raises(
        DataError,
        match=r"the 0 tokens of the eval split of a\.txt, .* set `train\.eval_every` to 0",
    ):
        check(dataset, model)
    check(dataset, model, eval_every=0)


def prompts(folder: Path) -> Dataset:
    path = folder / "pairs.jsonl"
    path.write_text("".join(f'{{"p": "{n} + 1", "c": "{n + 1}"}}\n' for n in range(40)))
    source = Source(path=path, fields=Fields(prompt="p", completion="c"))
    return prepare(source, folder / "d", eval_fraction=0.3)


def test_prompts_are_for_models_without_experts(tmp_path: Path) -> None:
    dataset, model = prompts(tmp_path), {**TEXT, "classes": 0}
    check(dataset, model)
    check(dataset, model, pack=True)
    with pytest.raises(ConfigError, match=r"`model\.experts` \(2\) needs data in which all"):
        check(dataset, {**model, "experts": 2})
    # Where no token is dropped and nothing is balanced, others change nothing.
    check(dataset, {**model, "experts": 2, "dispatch": "ragged"}, pack=True)


def test_only_text_with_known_documents_is_packed(tmp_path: Path) -> None:
    dataset, model = prompts(tmp_path), {**TEXT, "classes": 0}
    with pytest.raises(DataError, match="an older version prepared it; prepare it again"):
        check(replace(dataset, documents=None), model, pack=True)
    with pytest.raises(DataError, match="`pack` is for text, numbers has labels"):
        mixture_of([labelled(tmp_path / "l", 5)], (1.0,), sequence=5, pack=True)


def test_a_run_has_one_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words " * 50)
    source, run = Source(path=tmp_path / "text.txt"), tmp_path / "run"
    dataset = prepare(source, tmp_path / "d")
    config = {"run": {"folder": str(run)}, "data": {"folder": "data"}}
    config |= {"model": TEXT | {"classes": 0}, "train": {"batch": 2, "eval_batches": 1}}
    step = run / "checkpoints" / "step-00000000"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    (run / "tokenizer.json").write_text(byte_level_definition())
    check_data(config_from(config), [dataset])
    other = train_byte_pairs(["some words"], vocabulary=257)
    (run / "tokenizer.json").write_bytes(other.files["tokenizer.json"])
    with pytest.raises(ConfigError, match=r"`data.folder` \(data\) must have the tokenizer of the"):
        check_data(config_from(config), [dataset])
