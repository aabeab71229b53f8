"""A run begins with the parameters of an import, or of another run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import (
    Config,
    config_from,
    describe,
    keep_tokenizer,
)
from jaxpipe.config.tuning import check_same_tuning
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange import (
    ImportRecord,
    begin_run,
    keep_record,
    our_names,
    read_record,
    shape_of,
)
from jaxpipe.models import GptConfig
from jaxpipe.outer import saved_outer
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
from jaxpipe.runtime.data import Source, prepare, train_byte_pairs

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


LORA = {"rank": 1, "targets": ["mlp.up"]}
KERNEL = "blocks.0.mlp.up.kernel"
FACTORS = {f"{KERNEL}_lora_a": np.ones((8, 1)), f"{KERNEL}_lora_b": np.full((1, 32), 3.0)}


@pytest.fixture(params=[0, 7])
def tuned(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of a run with adapters, imported or trained."""
    folder = tmp_path / "tuned"
    config = config_of(folder, lora=LORA)
    moments = {f"mu.{name}": array for name, array in FACTORS.items() if request.param}
    partial = begin_checkpoint(folder, step=request.param)
    tensors = {
        name: array.astype(np.float32)
        for name, array in {**arrays_of(config), **FACTORS, **moments}.items()
    }
    commit(partial, write_shard(partial, "parameters", tensors), describe(config))
    record = ImportRecord(format=1, base="org/model", dtype="float32", config={})
    keep_record(record, folder)
    return folder


@pytest.mark.parametrize("lora", [{}, {**LORA, "alpha": 3.0}])
def test_other_adapters_are_merged_and_moments_are_new(
    tmp_path: Path, tuned: Path, lora: dict[str, Any]
):
    begin(config_of(tmp_path / "run", lora=lora), tuned)
    checkpoint = newest(tmp_path / "run")
    arrays = arrays_of(config_of(tuned))
    assert (checkpoint.step, checkpoint.tensors.keys()) == (0, arrays.keys())
    merged = checkpoint.read([KERNEL])[KERNEL]
    scale = config_of(tuned, lora=LORA).lora.scale
    np.testing.assert_allclose(merged, arrays[KERNEL] + 3.0 * scale, rtol=1e-6)
    # New adapters are for these kernels, not for those of the import.
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record.base is None


def test_the_same_adapters_stay(tmp_path: Path, tuned: Path):
    config = config_of(tmp_path / "run", lora=LORA)
    begin(config, tuned)
    checkpoint = newest(tmp_path / "run")
    arrays = {**arrays_of(config), **FACTORS}
    assert (checkpoint.step, checkpoint.tensors.keys()) == (0, arrays.keys())
    for name, array in checkpoint.read(arrays).items():
        np.testing.assert_array_equal(array, arrays[name].astype(np.float32), err_msg=name)
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record.base == "org/model"
    check_same_tuning(config, checkpoint)
    with pytest.raises(CheckpointError, match=r"`lora.rank` \(0\) must be as in .* --from`"):
        check_same_tuning(config_of(tmp_path / "run"), checkpoint)


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


def test_the_data_of_a_run_that_begins_have_the_tokenizer_of_the_import(tmp_path: Path):
    tokenizer = train_byte_pairs(["the cat sat on the mat"], vocabulary=257)
    model = {**MODEL, "vocabulary": 257}
    sections = {"model": model, "data": {"folder": str(tmp_path / "bytes")}}
    imported = config_of(tmp_path / "imported", **sections)
    tensors = [StreamedTensor.of(name, array) for name, array in arrays_of(imported).items()]
    begin_run(tmp_path / "imported", tensors, describe(imported))
    keep_tokenizer(tokenizer, tmp_path / "imported")
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    source = Source(path=tmp_path / "text.txt")
    prepare(source, tmp_path / "bytes")
    config = config_of(tmp_path / "run", **sections)
    with pytest.raises(ConfigError, match=r"`data.folder` .* must have the tokenizer of the model"):
        begin(config, tmp_path / "imported")
    assert not (tmp_path / "run").exists()
    prepare(source, tmp_path / "same", tokenizer=tokenizer)
    config = config_of(tmp_path / "run", model=model, data={"folder": str(tmp_path / "same")})
    begin(config, tmp_path / "imported")
    assert (tmp_path / "run" / "tokenizer.json").is_file()


def test_islands_begin_with_the_parameters_of_one_model(imported: Path, tmp_path: Path):
    """What is written has nothing of islands, and says so, whatever the run will have."""
    config = config_of(
        tmp_path / "run", outer={"islands": 2, "every": 2}, train={"steps": 2, "batch": 2}
    )
    begin(config, imported)
    assert saved_outer(newest(tmp_path / "run").metadata).islands == 0
