"""Survivors continue where no rank sees the folder of another.

Each rank works in a folder of its own, and `run.folder` is a relative path: so ranks of one machine
have disks of their own, without namespaces.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.topo.toml_text import toml_text
from tests.helpers import mpi_command
from tests.runtime.training import run_tree, tiny_tree

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        "--oversubscribe" not in mpi_command(1), reason="MPICH has no folder for each rank"
    ),
]

REPOSITORY = Path(__file__).parents[2]
STEPS = 6


def started(
    folders: list[Path], config: Path, *options: str, survives: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run one rank in each folder, to the end."""
    launcher, *general = launch_command(find_mpirun(), num_ranks=1, survives=survives)
    at = general.index("-n")
    del general[at : at + 2]
    program = (sys.executable, "-P", "-m", "jaxpipe", "train", str(config), *options)
    ranks = [
        word
        for number, folder in enumerate(folders)
        for word in (*([":"] if number else []), "-n", "1", "--wdir", str(folder), *program)
    ]
    return subprocess.run(
        [launcher, *general, *ranks],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "step" in row]


def test_survivors_continue_without_the_disk_of_a_lost_rank(tmp_path: Path, dataset: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "run": {"survive": "shrink"},
        "plan": {"cluster": "two-region", "stages": 1, "replicas": 3},
        "train": {"steps": STEPS, "batch": 12, "eval_every": STEPS},
    }
    alone = {**sections, "run": {}, "plan": {"stages": 1, "replicas": 1}}
    expected = run_tree(tiny_tree(tmp_path / "alone", dataset, **alone))
    folders, config = [tmp_path / name for name in "abc"], tmp_path / "config.toml"
    for folder in folders:
        folder.mkdir()
    config.write_text(toml_text(tiny_tree(Path("run"), dataset, **sections)))
    hooks = ("--hooks", "tests.programs.lost_rank:lost")
    done = started(folders, config, *hooks, survives=True)
    assert done.returncode == 0, done.stdout
    assert "rank 2 of 3 is lost; 2 continue after step 3, with the state of the" in done.stdout
    assert losses(folders[0] / "run") == pytest.approx([m.loss for m in expected], rel=1e-5)
    assert STEPS in committed_folders(folders[0] / "run")
