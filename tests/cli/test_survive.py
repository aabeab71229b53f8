"""A run whose ranks survive each other goes on in the same job when one is killed."""

from pathlib import Path

import pytest

from jaxpipe.plan import read_resolved_plan
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.metrics.records import read_metrics, read_summary
from jaxpipe.runtime.watchdog import read_cause
from tests.cli.conftest import WriteConfig
from tests.cli.test_faults import ranks, training, wait_for_steps
from tests.helpers import mpi_command
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.mpi

STEPS = 60
ROUNDING = 1e-5
TRAIN = {"steps": STEPS, "eval_every": STEPS, "batch": 9}
UNLIKE = {"cuts": [[2, 1], [3]], "shares": [6, 3]}
"""Two ranks share the layers, a third has them all."""
NO_CHECKPOINT = {"every": 100_000}

is_open_mpi = "--oversubscribe" in mpi_command(1)


@pytest.mark.skipif(not is_open_mpi, reason="ULFM is Open MPI's")
def test_the_others_go_on_with_what_they_hold(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    config = write_config(
        run={"survive": "shrink"}, plan=UNLIKE, train=TRAIN, checkpoint=NO_CHECKPOINT
    )
    with training(config) as process:
        wait_for_steps(tmp_path / "run", steps=3)
        ranks(config)[0].kill()
        told, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "rank 0 of 3 is lost; 2 continue after step " in told
    assert "with the state of the survivors, as 1 stage x 2 replicas" in told
    assert read_cause(tmp_path / "run") is None
    file = tmp_path / "run" / "metrics.jsonl"
    metrics = read_metrics(file)
    assert [m.step for m in metrics] == list(range(1, STEPS + 1))
    described = read_summary(file).description
    assert described is not None
    # The whole replica is the first one now: rank 2 has become rank 0.
    assert described["config"]["plan"]["file"] == str(tmp_path / "run" / "plan.toml")
    next_plan = read_resolved_plan(tmp_path / "run" / "plan.toml")
    assert next_plan.devices == ("here-0:2", "here-0:1")
    assert [pipeline.cut for pipeline in next_plan.plan.pipelines] == [(3,), (3,)]
    assert sorted(pipeline.num_samples for pipeline in next_plan.plan.pipelines) == [4, 5]
    assert newest_valid(tmp_path / "run").step == STEPS
    alone = {"stages": 1, "replicas": 1}
    expected = run_tree(tiny_tree(tmp_path / "undisturbed", dataset, plan=alone, train=TRAIN))
    assert [m.loss for m in metrics] == pytest.approx([m.loss for m in expected], rel=ROUNDING)
