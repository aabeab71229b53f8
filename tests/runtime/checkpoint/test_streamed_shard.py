"""Files that are written piece by piece are those of a whole write, and verified as they are."""

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    StreamedTensor,
    begin_checkpoint,
    commit,
    open_checkpoint,
    streamed_shard,
    write_shard,
    write_streamed_shard,
)

ARRAYS = {
    "embed.tokens": np.arange(35, dtype=np.float32).reshape(7, 5),
    "blocks.0.norm1.scale": np.ones(3, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
    "head.kernel": np.random.default_rng(0).normal(size=(6, 2, 2)).astype(np.float32),
}


def in_rows(name: str, array: np.ndarray) -> StreamedTensor:
    return StreamedTensor(name, array.shape, lambda: (array[i : i + 2] for i in range(0, 7, 2)))


def test_pieces_make_the_file_of_a_whole_write(tmp_path: Path) -> None:
    streamed = [in_rows(name, array) for name, array in ARRAYS.items()]
    folder = begin_checkpoint(tmp_path, step=0)
    entries = write_streamed_shard(folder, "parameters", streamed)
    whole = begin_checkpoint(tmp_path / "whole", step=0)
    assert entries == write_shard(whole, "parameters", ARRAYS)
    committed = commit(folder, entries, {})
    checkpoint = open_checkpoint(committed)
    assert (committed / "parameters.safetensors").stat().st_mode & 0o777 == 0o644
    read = load_file(committed / "parameters.safetensors")
    for held in (checkpoint.read(ARRAYS), read):
        assert held.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(held[name], array)
            assert held[name].shape == array.shape


@pytest.mark.parametrize("position", [12, -1])
def test_a_bit_that_flips_on_the_disk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(streamed_shard, "sync_file", flip)
    with pytest.raises(CheckpointError, match=r"differs from the one|does not match its checksum"):
        write_streamed_shard(tmp_path, "a", [in_rows(*each) for each in ARRAYS.items()])


def test_a_file_that_ends_early_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-4])

    monkeypatch.setattr(streamed_shard, "sync_file", cut)
    with pytest.raises(CheckpointError, match=r"head\.kernel does not match its checksum"):
        write_streamed_shard(tmp_path, "a", [in_rows(*each) for each in ARRAYS.items()])


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    def pieces() -> Iterator[np.ndarray]:
        for _ in range(64):
            yield np.zeros(2**10, np.float32)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"`checkpoint` must be writable; .*free some"):
            write_streamed_shard(tmp_path, "a", [StreamedTensor("a", (2**16,), pieces)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
