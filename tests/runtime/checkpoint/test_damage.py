"""No damage to a checkpoint passes: each flipped bit and each truncation is found."""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, open_checkpoint, write_shard

GENERATOR = np.random.default_rng(0)
SHARDS = (
    {
        "embed.tokens": GENERATOR.normal(size=(7, 5)).astype(np.float32),
        "blocks.0.scale": GENERATOR.normal(size=5).astype(ml_dtypes.bfloat16),
    },
    {"blocks.1.scale": np.ones(5, ml_dtypes.bfloat16), "step": np.array(3, np.int32)},
)
METADATA = {"seed": 3, "model": {"dim": 5, "rate": 0.25}}
FILES = ("manifest.json", "stage-0.safetensors", "stage-1.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    partial = begin_checkpoint(tmp_path, step=100)
    entries = [
        entry
        for stage, tensors in enumerate(SHARDS)
        for entry in write_shard(partial, f"stage-{stage}", tensors)
    ]
    return commit(partial, entries, METADATA)


def is_intact(folder: Path) -> bool:
    """Say whether everything reads as it was saved; what reads otherwise is an AssertionError."""
    try:
        opened = open_checkpoint(folder)
        tensors = opened.read(opened.tensors)
    except CheckpointError:
        return False
    expected = SHARDS[0] | SHARDS[1]
    assert (opened.step, opened.metadata, list(tensors)) == (100, METADATA, list(expected))
    for name, tensor in expected.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape), name
        assert tensors[name].tobytes() == tensor.tobytes(), name
    return True


def flips(intact: bytes) -> Iterator[bytes]:
    """Yield the file with one bit flipped, some bit of each byte in turn."""
    for position in range(len(intact)):
        flipped = bytearray(intact)
        flipped[position] ^= 1 << int(GENERATOR.integers(8))
        yield bytes(flipped)


@pytest.mark.parametrize("file", FILES)
def test_flipped_bits(folder: Path, file: str) -> None:
    intact = (folder / file).read_bytes()
    for position, flipped in enumerate(flips(intact)):
        (folder / file).write_bytes(flipped)
        assert not is_intact(folder), position
    (folder / file).write_bytes(intact)
    assert is_intact(folder)


@pytest.mark.parametrize("file", FILES)
def test_truncations(folder: Path, file: str) -> None:
    intact = (folder / file).read_bytes()
    for length in range(0, len(intact), 3):
        (folder / file).write_bytes(intact[:length])
        assert not is_intact(folder), length


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert not is_intact(folder)


def test_shards_that_change_places(folder: Path) -> None:
    (folder / FILES[1]).rename(folder / "aside")
    (folder / FILES[2]).rename(folder / FILES[1])
    (folder / "aside").rename(folder / FILES[2])
    assert not is_intact(folder)


def test_the_tensor_and_its_file_are_named(folder: Path) -> None:
    path = folder / FILES[1]
    raw = path.read_bytes()
    path.write_bytes(raw.replace(SHARDS[0]["blocks.0.scale"].tobytes(), b"\0" * 10))
    match = r"stage-0\.safetensors is not: the tensor blocks\.0\.scale does not match its checksum"
    with pytest.raises(CheckpointError, match=match):
        open_checkpoint(folder).read(["blocks.0.scale"])
    assert open_checkpoint(folder).read(["embed.tokens"])


def test_an_unknown_format_version(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match=r"manifest\.json is not: `format` must be 1, not 2"):
        open_checkpoint(folder)
