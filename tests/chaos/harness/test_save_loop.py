"""A disk that is full for a block has room again after it, whatever ends the block."""

import resource
from pathlib import Path

import pytest

from jaxpipe.chaos.harness import save_loop
from jaxpipe.chaos.harness.save_loop import Loop, full_disk


def fail_in(loop: Loop, limits: list[int]) -> None:
    with full_disk(loop):
        limits.append(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
        raise ValueError("a save fails")


def test_the_limit_of_file_sizes_is_lifted_after_an_error(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    loop, limits = Loop(folder=str(tmp_path), num_saves=1), []
    with pytest.raises(ValueError, match="a save fails"):
        fail_in(loop, limits)
    assert limits == [loop.shard_bytes // 2]
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


def test_the_file_that_fills_the_disk_is_removed_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # In the place of a file that takes all the space of this disk.
    monkeypatch.setattr(save_loop, "_fill", Path.touch)
    filler = tmp_path / "filler"
    with pytest.raises(ValueError, match="a save fails"):
        fail_in(Loop(folder=str(tmp_path), num_saves=1, filler=str(filler)), [])
    assert not filler.exists()
