"""A run over emulated links: the same losses as without, later, and it says so."""

from pathlib import Path

import pytest

from jaxpipe import topo
from tests.cli.conftest import WriteConfig
from tests.cli.test_runs import JAXPIPE, measured, run
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.mpi

EMULATED = "links are emulated: each message takes what it takes on cluster two-region, or longer\n"


def test_links_are_emulated_and_losses_stay_the_same(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    plan = {"cluster": "two-region", "stages": 2, "replicas": 1}
    unshaped = run_tree(tiny_tree(tmp_path / "unshaped", dataset, plan=plan))
    shaped = ("--set", "run.transport=shaped")
    config = str(write_config(plan=plan))
    job = run([*JAXPIPE, "train", config, *shaped])
    assert job.returncode == 0, job.stderr
    assert job.stdout.startswith(EMULATED)
    emulated = measured(tmp_path / "run")
    latency_s = topo.load("two-region").latency_s[0, 1]
    assert all(m.step_s >= 2 * latency_s for m in emulated)  # one way and back
    assert [m.loss for m in emulated] == [m.loss for m in unshaped]
