"""Whoever trains, the losses are those of one device: each system over MPI, two real ranks."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.systems import System
from tests.helpers import mpi_command, mpi_environment
from tests.programs.mpi_losses import SYSTEMS, WITH_EXPERTS
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.mpi

STEPS = 5


# With as many slots as tokens nobody drops any, however a system groups them.
EXPERTS = {"num_layers": 1, "experts": 4, "experts_per_token": 2, "capacity_factor": 4.0}


@pytest.mark.parametrize(
    ("model", "systems"),
    [
        ({"num_layers": 1}, SYSTEMS),
        # Their gradients, in one process: tests/baselines/autoshard/duplex_step.
        pytest.param(EXPERTS, WITH_EXPERTS, marks=pytest.mark.deep),
    ],
)
def test_every_system_has_the_losses_of_one_device(
    tmp_path: Path, dataset: Path, model: dict[str, Any], systems: tuple[System, ...]
) -> None:
    sections = {
        "model": model,
        "train": {"steps": STEPS, "batch": 4},
        "optimizer": {"clip_norm": 0.5, "learning_rate": 3e-2},
    }
    two = tiny_tree(tmp_path / "run", dataset, **sections, plan={"stages": 1, "replicas": 2})
    (tmp_path / "tree.json").write_text(json.dumps(two))
    command = mpi_command(2, "-m", "tests.programs.mpi_losses", str(tmp_path / "tree.json"))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        env=mpi_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one = tiny_tree(tmp_path / "one", dataset, **sections, plan={"stages": 1, "replicas": 1})
    expected = [step.loss for step in run_tree(one)]
    assert expected[-1] < expected[0] - 0.1
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for system in (*(each.value for each in systems), "host"):
            steps, part = found[system]
            assert [step["loss"] for step in steps] == pytest.approx(expected, rel=2e-6), system
            assert part["peak_bytes"] > 0
            assert part["sent_bytes"] > 0
