"""Every way to break a checkpoint breaks the newest, says which ones, and leaves no file alone."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from jaxpipe.chaos.harness.corruption import BREAKS, Break, Folders
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard


def saved(run: Path) -> Folders:
    folders = {}
    for step in (1, 2, 3):
        folder = begin_checkpoint(run, step=step)
        shards = {f"stage-{n}": np.random.default_rng((step, n)).normal(size=900) for n in range(2)}
        entries = [e for name, a in shards.items() for e in write_shard(folder, name, {name: a})]
        folders[step] = commit(folder, entries, {"step": step})
    return folders


def contents(folders: Folders) -> dict[int, dict[str, bytes]]:
    return {
        step: {path.name: path.read_bytes() for path in folder.iterdir()}
        for step, folder in folders.items()
    }


@pytest.mark.parametrize("break_it", dict.fromkeys(BREAKS), ids=lambda each: each.__name__)
def test_damages(tmp_path: Path, break_it: Break) -> None:
    for seed in range(8):
        folders = saved(tmp_path / str(seed))
        before = contents(folders)
        damage = break_it(folders, Random(seed))
        changed = {step for step, files in contents(folders).items() if files != before[step]}
        assert changed == damage.steps
        assert 3 in changed
        assert changed < {1, 2, 3}
