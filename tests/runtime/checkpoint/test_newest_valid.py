"""A run resumes from the newest checkpoint that is intact, and says which ones are not."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, newest_valid, write_shard

NUM_DAMAGES = 300
FILES = ("manifest.json", "stage-0.safetensors", "stage-1.safetensors")
REPOSITORY = Path(__file__).parents[3]


def save(run: Path, *, step: int) -> Path:
    folder = begin_checkpoint(run, step=step)
    tensors = np.random.default_rng(step).normal(size=(2, 11)).astype(np.float32)
    entries = [
        entry
        for stage in range(2)
        for entry in write_shard(folder, f"stage-{stage}", {f"of {stage}": tensors[stage]})
    ]
    return commit(folder, entries, {"seed": step})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    for step in (1, 20, 300):
        save(folder, step=step)
    return folder


def flip(data: bytes, place: float) -> bytes:
    """Flip one bit."""
    position = int(place * 8 * len(data))
    flipped = bytearray(data)
    flipped[position // 8] ^= 1 << position % 8
    return bytes(flipped)


def truncate(data: bytes, place: float) -> bytes:
    return data[: int(place * len(data))]


def remove(data: bytes, place: float) -> None:
    return None


@settings(max_examples=NUM_DAMAGES, derandomize=True)
@given(
    damage=st.sampled_from([flip, flip, truncate, remove]),
    file=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
)
def test_all_of_300_damages_are_found(
    run: Path, damage: Callable[[bytes, float], bytes | None], file: str, place: float
) -> None:
    path = run / "checkpoints" / "step-00000300" / file
    intact = path.read_bytes()
    damaged = damage(intact, place)
    path.unlink() if damaged is None else path.write_bytes(damaged)
    try:
        assert newest_valid(run).step == 20
    finally:
        path.write_bytes(intact)
    assert newest_valid(run).step == 300


def test_the_broken_ones_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step=step)
    folders = tmp_path / "checkpoints"
    (folders / "step-00000003" / "manifest.json").unlink()
    (folders / "step-00000002" / "stage-1.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert newest_valid(tmp_path).step == 1
    first, second, last = caplog.messages
    assert f"{folders}/step-00000003 is broken" in first
    assert "manifest.json is not: " in first
    assert "step-00000002/stage-1.safetensors is not" in second
    assert last == f"the run resumes from step 1, in {folders}/step-00000001"


def test_a_checkpoint_of_another_step_is_none(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step=step)
    folders = tmp_path / "checkpoints"
    (folders / "step-00000003").rename(folders / "third")
    (folders / "step-00000002").rename(folders / "step-00000003")
    (folders / "third").rename(folders / "step-00000002")
    assert newest_valid(tmp_path).step == 1


def test_nothing_intact(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has none; start the run"):
        newest_valid(tmp_path)
    for step in (1, 2):
        (save(tmp_path, step=step) / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"all 2 of .* are broken, the newest .*0002"):
        newest_valid(tmp_path)


@pytest.mark.slow
def test_a_killed_save_leaves_something_to_resume_from(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.programs.killed_saves", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(killed) >= 60
    assert {each["call"] for each in killed} == {
        *("_write", "fsync", "mkdir", "rename", "replace", "rmtree", "unlink", "write_bytes")
    }
    assert {tuple(each["values"]) for each in killed} == {(1.0,), (2.0,)}
