"""A run begins with the parameters of an import, or of another run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import Config, config_from, describe
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange import begin_run, our_names, shape_of
from jaxpipe.models import GptConfig
from jaxpipe.run.folder.start_from import check_start_from, start_from
from jaxpipe.runtime.checkpoint import (
    Checkpoint,
    StreamedTensor,
    begin_checkpoint,
    commit,
    latest,
    open_checkpoint,
    write_shard,
)
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid

MODEL = {"num_layers": 2, "dim": 8, "num_heads": 2, "sequence": 8, "vocabulary": 16}


def config_of(folder: Path, **sections: dict[str, Any]) -> Config:
    tree = {"run": {"folder": str(folder)}, "data": {"folder": "data"}, "model": MODEL}
    return config_from({**tree, "train": {"batch": 2}, **sections})


def arrays_of(config: Config) -> dict[str, np.ndarray]:
    assert isinstance(config.model, GptConfig)
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=shape_of(name, config.model)).astype(np.float32)
        for name in our_names(config.model)
    }


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    config = config_of(tmp_path / "imported")
    tensors = [StreamedTensor.of(name, array) for name, array in arrays_of(config).items()]
    begin_run(tmp_path / "imported", tensors, describe(config))
    return tmp_path / "imported"


def begin(config: Config, source: Path) -> None:
    start_from(config, source, check_start_from(config, source))


def newest(folder: Path) -> Checkpoint:
    return newest_valid(folder)


def test_a_run_begins_with_the_parameters_of_an_import(tmp_path: Path, imported: Path):
    config = config_of(tmp_path / "run", optimizer={"learning_rate": 0.5})
    begin(config, imported)
    checkpoint = newest(tmp_path / "run")
    assert checkpoint.step == 0
    assert checkpoint.metadata["config"]["optimizer"]["learning_rate"] == 0.5
    expected = arrays_of(config)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, array in checkpoint.read(expected).items():
        np.testing.assert_array_equal(array, expected[name])
    with pytest.raises(ConfigError, match=r"`run.folder` .*holds checkpoints.*--resume"):
        begin(config, imported)


def test_the_run_of_an_import_may_begin_in_its_folder(imported: Path):
    assert check_start_from(config_of(imported), imported).folder == latest(imported)


def test_adapters_are_merged_and_moments_are_new(tmp_path: Path):
    config = config_of(tmp_path / "tuned", lora={"rank": 1, "targets": ["mlp.up"]})
    arrays = arrays_of(config)
    kernel = "blocks.0.mlp.up.kernel"
    factors = {f"{kernel}_lora_a": np.ones((8, 1)), f"{kernel}_lora_b": np.full((1, 32), 3.0)}
    moments = {f"mu.{name}": array for name, array in factors.items()}
    partial = begin_checkpoint(tmp_path / "tuned", step=7)
    tensors = {
        name: array.astype(np.float32) for name, array in {**arrays, **factors, **moments}.items()
    }
    commit(partial, write_shard(partial, "parameters", tensors), describe(config))
    begin(config_of(tmp_path / "run"), tmp_path / "tuned")
    checkpoint = newest(tmp_path / "run")
    assert (checkpoint.step, checkpoint.tensors.keys()) == (0, arrays.keys())
    merged = checkpoint.read([kernel])[kernel]
    scale = config.lora.scale
    np.testing.assert_allclose(merged, arrays[kernel] + 3.0 * scale, rtol=1e-6)


def test_a_run_of_another_model_is_refused_before_anything_is_written(
    tmp_path: Path, imported: Path
):
    config = config_of(tmp_path / "run", model={**MODEL, "dim": 16})
    with pytest.raises(CheckpointError, match=r"`model.dim` \(16\) must be as in"):
        begin(config, imported)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"`--from` .*nothing is no run to start from"):
        check_start_from(config_of(tmp_path / "run"), tmp_path / "nothing")


def test_a_run_that_has_trained_is_continued_in_place_of_begun(tmp_path: Path):
    config = config_of(tmp_path / "run")
    partial = begin_checkpoint(tmp_path / "run", step=3)
    commit(partial, write_shard(partial, "parameters", arrays_of(config)), describe(config))
    assert open_checkpoint(latest(tmp_path / "run")).step == 3
    with pytest.raises(ConfigError, match="continue with --resume"):
        check_start_from(config, tmp_path / "run")
