"""Checkpoints of strangers, sealed as ours: nothing outside is opened, every byte is checked."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    newest_valid,
    open_checkpoint,
    verify,
    write_shard,
)
from jaxpipe.runtime.storage.checksum import seal, unseal

TABLE = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
STAGES = (
    {"embed.tokens": TABLE, "blocks.0.scale": np.ones(4, np.float32)},
    {"embed.tokens": TABLE, "blocks.1.scale": np.ones(4, np.float32)},  # a tied model has two
)
MANIFEST, FIRST, LAST = "manifest.json", "stage-0.safetensors", "stage-1.safetensors"
Tree = dict[str, Any]


def save(run: Path, *, step: int) -> Path:
    folder = begin_checkpoint(run, step=step)
    entries = [
        entry
        for number, tensors in enumerate(STAGES)
        for entry in write_shard(folder, f"stage-{number}", tensors)
    ]
    return commit(folder, entries, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, step=1)
    return save(tmp_path, step=2)


def forge(folder: Path, change: Callable[[Tree], None]) -> None:
    """Change a manifest, and seal it again."""
    path = folder / MANIFEST
    tree = unseal(path.read_bytes(), version=1)
    change(tree)
    path.write_bytes(seal(tree, version=1))


def as_before(tree: Tree) -> None:
    """Make the manifest one of an older version."""
    del tree["copies"], tree["headers"]


@pytest.mark.parametrize("file", [MANIFEST, FIRST, LAST])
@pytest.mark.parametrize("bit", [0, 5])
def test_every_byte_has_a_checksum(folder: Path, file: str, bit: int):
    intact = (folder / file).read_bytes()
    verify(open_checkpoint(folder))
    for position in range(len(intact)):
        flipped = bytearray(intact)
        flipped[position] ^= 1 << bit
        (folder / file).write_bytes(flipped)
        assert newest_valid(folder.parents[1]).step == 1, position


def test_blanks_of_a_header_have_one(folder: Path):
    path = folder / FIRST
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    assert header.endswith(b" ")
    path.write_bytes(data[:8] + header[:-1] + b"\n" + data[8 + length :])
    with pytest.raises(CheckpointError, match="its header does not match its checksum"):
        verify(open_checkpoint(folder))


def test_manifests_of_older_versions_are_read(folder: Path):
    forge(folder, as_before)
    checkpoint = newest_valid(folder.parents[1])
    assert checkpoint.step == 2
    assert checkpoint.copies == ()


def drop(name: str) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree["tensors"] = [each for each in tree["tensors"] if each["name"] != name]

    return change


def drop_file(tree: Tree) -> None:
    for key in ("tensors", "copies"):
        tree[key] = [each for each in tree[key] if each["file"] != LAST]
    del tree["headers"][LAST]


@pytest.mark.parametrize("name", ["blocks.1.scale", "embed.tokens"])
@pytest.mark.parametrize("old", [False, True])
def test_a_manifest_without_a_tensor_falls_back(
    folder: Path, name: str, old: bool, caplog: pytest.LogCaptureFixture
):
    if old:
        forge(folder, as_before)
    forge(folder, drop(name))
    if not old and name == "embed.tokens":  # the copy lists it
        forge(folder, lambda tree: tree.update(copies=[]))
    assert newest_valid(folder.parents[1]).step == 1
    words = rf"it holds the tensor {name}, which the manifest lacks|manifest does not list it"
    assert re.search(words, caplog.text)


def test_a_manifest_without_a_file_falls_back(folder: Path, caplog: pytest.LogCaptureFixture):
    forge(folder, drop_file)
    assert newest_valid(folder.parents[1]).step == 1
    assert "the manifest does not list it" in caplog.text


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("key", ["tensors", "copies"])
def test_paths_stay_in_the_folder(folder: Path, absolute: bool, key: str):
    outside = folder.parent / "outside.safetensors"
    (folder / FIRST).rename(outside)
    where = str(outside) if absolute else "../outside.safetensors"

    def change(tree: Tree) -> None:
        for each in tree[key]:
            each["file"] = where

    forge(folder, change)
    with pytest.raises(CheckpointError, match="not the name of a file in this folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("file", [MANIFEST, FIRST])
def test_a_pipe_is_not_waited_for(folder: Path, file: str):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        verify(open_checkpoint(folder))
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        open_checkpoint(folder).read(["embed.tokens"])


def test_a_link_is_not_followed(folder: Path):
    (folder / FIRST).rename(folder.parent / "outside")
    (folder / FIRST).symlink_to(folder.parent / "outside")
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        open_checkpoint(folder).read(["embed.tokens"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.update(step=-1), "`step` must be from 0"),
        (lambda tree: tree.update(step=2**40), "`step` must be from 0"),
        (lambda tree: tree.update(metadata=[]), "Expected `object`"),
        (lambda tree: tree["tensors"][0].update(shape=[-1, 4]), "`shape` must not be negative"),
        (lambda tree: tree["tensors"][0].update(dtype="object"), "Invalid enum value"),
        (lambda tree: tree["tensors"][0].update(file=3), "Expected `str`"),
        (lambda tree: tree.update(tensors={}), "Expected `array`"),
    ],
)
def test_wrong_types_are_one_error(folder: Path, change: Callable[[Tree], None], words: str):
    forge(folder, change)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder)


def test_a_shape_claims_no_memory(folder: Path):
    forge(folder, lambda tree: tree["tensors"][0].update(shape=[10**12, 10**12]))
    with pytest.raises(CheckpointError, match=r"is float32\[9, 4\], not float32"):
        open_checkpoint(folder).read(["embed.tokens"])
