"""Whatever a save leaves behind when it is interrupted, a committed checkpoint is found."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    latest,
    open_checkpoint,
    partial_folder,
    prune,
    write_shard,
)
from jaxpipe.runtime.checkpoint.folders import step_of

DISK_CALLS = [
    *[(Path, name) for name in ("mkdir", "rename", "replace", "unlink", "write_bytes")],
    *[(os, "fsync"), (shutil, "rmtree")],
]
NUM_CALLS = 20  # no fewer than a save makes


def save(run: Path, *, step: int, value: float = 0.0) -> Path:
    folder = begin_checkpoint(run, step=step)
    return commit(folder, write_shard(folder, "stage-0", {"a": np.array(value)}), {})


def value_of(folder: Path) -> float:
    return float(open_checkpoint(folder).read(["a"])["a"])


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_highest_step_is_the_latest(tmp_path: Path) -> None:
    for step in (5, 100, 99, 123_456_789, 20):
        save(tmp_path, step=step)
    assert latest(tmp_path).name == "step-123456789"
    assert open_checkpoint(latest(tmp_path)).step == 123_456_789


def test_step_zero(tmp_path: Path) -> None:
    folder = save(tmp_path, step=0)
    assert latest(tmp_path) == folder
    assert step_of(folder) == 0


def test_all_ranks_know_the_folder(tmp_path: Path) -> None:
    assert begin_checkpoint(tmp_path, step=7) == partial_folder(tmp_path, step=7)


@pytest.mark.parametrize("made", [False, True])
def test_none_yet(tmp_path: Path, made: bool) -> None:
    if made:
        begin_checkpoint(tmp_path, step=1)
    with pytest.raises(
        CheckpointError, match=r"must be the folder of a run, which holds checkpoints, and has none"
    ):
        latest(tmp_path)


def test_an_interrupted_save_is_ignored_and_removed_by_the_next(tmp_path: Path) -> None:
    save(tmp_path, step=1)
    partial = begin_checkpoint(tmp_path, step=2)
    write_shard(partial, "stage-0", {"a": np.ones(3)})
    assert latest(tmp_path).name == "step-00000001"
    save(tmp_path, step=3)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_partial_folder_with_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, step=1)
    save(tmp_path, step=2).rename(partial_folder(tmp_path, step=2))
    assert latest(tmp_path).name == "step-00000001"


def test_the_same_step_again_replaces(tmp_path: Path) -> None:
    save(tmp_path, step=1, value=1.0)
    folder = save(tmp_path, step=1, value=2.0)
    assert value_of(folder) == 2.0
    assert names(tmp_path) == ["step-00000001"]


def test_the_old_checkpoint_of_a_step_is_found_until_the_new_one_is_in_place(
    tmp_path: Path,
) -> None:
    folder = save(tmp_path, step=1, value=1.0)
    replaced = folder.rename(folder.with_name(folder.name + ".replaced"))
    assert latest(tmp_path) == replaced
    assert value_of(latest(tmp_path)) == 1.0
    save(tmp_path, step=0)
    assert latest(tmp_path) == replaced
    assert value_of(save(tmp_path, step=1, value=2.0)) == 2.0
    assert names(tmp_path) == ["step-00000000", "step-00000001"]


def test_an_old_checkpoint_that_stayed_beside_the_new_one(tmp_path: Path) -> None:
    old = save(tmp_path, step=1, value=1.0)
    aside = old.rename(tmp_path / "aside")
    new = save(tmp_path, step=1, value=2.0)
    aside.rename(new.with_name(new.name + ".replaced"))
    assert latest(tmp_path) == new
    save(tmp_path, step=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


class CrashError(Exception):
    """The machine stops here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, *, call: int) -> None:
    """Stop before the given call that changes the disk, counted over all of them."""
    calls = count()

    def stopping(function: Callable[..., object]) -> Callable[..., object]:
        def stop_or_call(*args: object, **kwargs: object) -> object:
            if next(calls) == call:
                raise CrashError
            return function(*args, **kwargs)

        return stop_or_call

    for owner, name in DISK_CALLS:
        monkeypatch.setattr(owner, name, stopping(getattr(owner, name)))


@pytest.mark.parametrize("call", range(NUM_CALLS))
def test_a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(tmp_path, step=1, value=1.0)
    save(tmp_path, step=2, value=2.0)
    with monkeypatch.context() as patched, suppress(CrashError):
        crash_at(patched, call=call)
        save(tmp_path, step=2, value=3.0)
    assert step_of(latest(tmp_path)) == 2
    assert value_of(latest(tmp_path)) in (2.0, 3.0)
    assert value_of(save(tmp_path, step=2, value=4.0)) == 4.0
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_crashes_were_tried_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, step=2)
    crash_at(monkeypatch, call=NUM_CALLS)
    save(tmp_path, step=2)  # it has fewer calls


def test_folders_of_the_user_are_left_alone(tmp_path: Path) -> None:
    save(tmp_path, step=1).rename(tmp_path / "checkpoints" / "step-00000001-best")
    (tmp_path / "checkpoints" / "notes.txt").write_text("fine")
    save(tmp_path, step=2)
    save(tmp_path, step=3)
    prune(tmp_path, keep=1, newest=3)
    assert names(tmp_path) == ["notes.txt", "step-00000001-best", "step-00000003"]


@pytest.mark.parametrize(("keep", "kept"), [(1, [30]), (2, [20, 30]), (9, [4, 10, 20, 30])])
def test_prune_keeps_the_highest_steps(tmp_path: Path, keep: int, kept: list[int]) -> None:
    for step in (10, 4, 30, 20):
        save(tmp_path, step=step)
    prune(tmp_path, keep=keep, newest=30)
    assert names(tmp_path) == [f"step-{step:08d}" for step in kept]


def test_prune_counts_no_later_steps(tmp_path: Path) -> None:
    for step in (10, 20, 99):
        save(tmp_path, step=step)
    prune(tmp_path, keep=1, newest=20)
    assert names(tmp_path) == ["step-00000020", "step-00000099"]


def test_prune_must_keep_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="`keep` must be at least 1, not 0"):
        prune(tmp_path, keep=0, newest=1)


def test_prune_of_nothing(tmp_path: Path) -> None:
    prune(tmp_path, keep=1, newest=1)
