"""What is saved is what is read, by any rank, tensor by tensor."""

import logging
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime import checkpoint
from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    open_checkpoint,
    streamed_shard,
    write_shard,
)

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64"),
]


def save(run: Path, *shards: dict[str, np.ndarray], step: int = 100, **metadata: object) -> Path:
    folder = begin_checkpoint(run, step=step)
    entries = [
        entry
        for stage, tensors in enumerate(shards)
        for entry in write_shard(folder, f"stage-{stage}", tensors)
    ]
    return commit(folder, entries, metadata)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7)])
def test_every_dtype_and_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    high = 2 if dtype == "bool" else 256
    raw = np.random.default_rng(0).integers(0, high, num_bytes, np.uint8)
    tensor = raw.view(dtype).reshape(shape)
    read = open_checkpoint(save(tmp_path, {"a": tensor})).read(["a"])["a"]
    assert (read.shape, read.dtype) == (tensor.shape, tensor.dtype)
    assert read.tobytes() == tensor.tobytes()


def test_bfloat16_is_read_where_jax_is_not_imported(tmp_path: Path) -> None:
    save(tmp_path, {"a": np.arange(3).astype(ml_dtypes.bfloat16)})
    code = (
        "import sys, pathlib; from jaxpipe.runtime.checkpoint import latest, open_checkpoint;"
        "a = open_checkpoint(latest(pathlib.Path(sys.argv[1]))).read(['a'])['a'];"
        "print('jax' in sys.modules, a.dtype, a.tolist())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "False bfloat16 [0.0, 1.0, 2.0]"


def test_strided_tensors(tmp_path: Path) -> None:
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensors = {"t": grid.T, "step": grid[::2, 1::2], "fortran": np.asfortranarray(grid)}
    read = open_checkpoint(save(tmp_path, tensors)).read(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_several_shards_and_metadata(tmp_path: Path) -> None:
    folder = save(
        tmp_path,
        {"a": np.ones(3), "b": np.zeros(2, np.int8)},
        {},
        {"c": np.ones(1, ml_dtypes.bfloat16)},
        seed=3,
        model={"dim": 64, "name": "gpt"},
    )
    assert folder == tmp_path / "checkpoints" / "step-00000100"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", *(f"stage-{stage}.safetensors" for stage in range(3))]
    opened = open_checkpoint(folder)
    assert opened.step == 100
    assert opened.metadata == {"seed": 3, "model": {"dim": 64, "name": "gpt"}}
    assert list(opened.tensors) == ["a", "b", "c"]
    assert opened.tensors["c"].layout == "bfloat16[1]"
    assert list(opened.read(["c", "a"])) == ["c", "a"]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    folder = save(tmp_path, {"a": np.ones(3)}, {"b": np.ones(3)})
    (folder / "stage-1.safetensors").unlink()
    assert open_checkpoint(folder).read([]) == {}
    assert open_checkpoint(folder).read(["a"])["a"].tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match=r"stage-1\.safetensors is not: No such file"):
        open_checkpoint(folder).read(["a", "b"])


def test_the_copy_of_a_tied_embedding_is_kept_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = np.arange(3.0)
    folder = save(tmp_path, {"embed.tokens": tokens}, {"embed.tokens": tokens})
    assert open_checkpoint(folder).tensors["embed.tokens"].file == "stage-0.safetensors"
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        folder = save(tmp_path, {"embed.tokens": tokens}, {"embed.tokens": tokens + 1})
    assert "embed.tokens differs: kept that of stage-0.safetensors" in caplog.text
    read = open_checkpoint(folder).read(["embed.tokens"])
    np.testing.assert_array_equal(read["embed.tokens"], tokens)


def test_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    opened = open_checkpoint(save(tmp_path, {"a": np.ones(3)}))
    with pytest.raises(
        CheckpointError, match=r"must contain the tensor nu\.a; .* does not; resume"
    ):
        opened.read(["a", "nu.a"])


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "U3", "object"])
def test_a_dtype_without_a_place(tmp_path: Path, dtype: str) -> None:
    tensor = np.zeros(2, getattr(ml_dtypes, dtype, dtype))
    with pytest.raises(CheckpointError, match=r"`dtype` of a tensor must be one of bool, .*a is"):
        write_shard(tmp_path, "stage-0", {"a": tensor})


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"`checkpoint` must be writable; .*another run fold"):
        write_shard(tmp_path / "none", "stage-0", {"a": np.ones(3)})


def test_a_write_that_goes_wrong_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tear(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(streamed_shard, "sync_file", tear)
    with pytest.raises(CheckpointError, match="the tensor a does not match its checksum"):
        write_shard(tmp_path, "stage-0", {"a": np.ones(3)})


def test_a_shard_on_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    folder = begin_checkpoint(tmp_path, step=1)
    elsewhere = begin_checkpoint(tmp_path / "other", step=1)
    entries = write_shard(elsewhere, "stage-1", {"a": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"stage-1.*No such file.*all hosts share the folder"):
        commit(folder, entries, {})
    write_shard(folder, "stage-1", {"b": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"stage-1.*it lacks the tensor a"):
        commit(folder, entries, {})


def test_the_border_is_sorted_and_does_not_import_jax() -> None:
    assert checkpoint.__all__ == sorted(checkpoint.__all__)
    assert all(hasattr(checkpoint, name) for name in checkpoint.__all__)
    code = "import sys, jaxpipe.runtime.checkpoint; print('jax' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "False"
