"""A run whose ranks survive each other goes on in the same job when one is killed."""

from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.plan import Pipeline, Plan, Sharing, read_resolved_plan, write_plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.metrics.records import read_description, read_metrics
from jaxpipe.runtime.watchdog import read_cause
from jaxpipe.schedule import ScheduleKind
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
    described = read_description(file)
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


def everything() -> Plan:
    """Return interleaved stages, unequal replicas, and ranks of one device and of two."""
    wide = Pipeline(devices=(0,), peers=((1,),), cut=(2, 2), num_microbatches=2, microbatch=2)
    long = Pipeline(devices=(2, 3), cut=(1, 1, 1, 1), num_microbatches=4, microbatch=1)
    plan = Plan(
        pipelines=(wide, long),
        schedule=ScheduleKind.INTERLEAVED,
        tied=True,
        num_chunks=2,
        sharing=Sharing.TENSOR,
    )
    return with_island_trees(plan, topo.load("laptop").devices)


@pytest.mark.skipif(not is_open_mpi, reason="ULFM is Open MPI's")
def test_interleaved_unequal_ranks_of_several_devices_go_on(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    file = tmp_path / "everything.toml"
    write_plan(everything(), topo.load("laptop"), file)
    model, train = {"num_layers": 4}, {**TRAIN, "steps": 40, "batch": 8, "eval_every": 40}
    config = write_config(
        run={"survive": "shrink"},
        model=model,
        plan={"file": str(file)},
        train=train,
        checkpoint=NO_CHECKPOINT,
    )
    with training(config) as process:
        wait_for_steps(tmp_path / "run", steps=3)
        ranks(config)[2].kill()
        told, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert "rank 2 of 3 is lost; 2 continue after step " in told, told
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [m.step for m in metrics] == list(range(1, 41))
    following = read_resolved_plan(tmp_path / "run" / "plan.toml").plan
    assert (following.num_ranks, following.num_chunks) == (2, 2)
    assert following.groups[0] == (0, 1)
    alone = {"stages": 1, "replicas": 1}
    tree = tiny_tree(tmp_path / "undisturbed", dataset, model=model, plan=alone, train=train)
    expected = run_tree(tree)
    assert [m.loss for m in metrics] == pytest.approx([m.loss for m in expected], rel=ROUNDING)
