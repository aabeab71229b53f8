"""Ranks with bottlenecks train as one device does, and send no more than the rank of each."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import config_from
from jaxpipe.config.check_run import check_run
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from tests.helpers import mpi_command, mpi_environment
from tests.runtime.training import Tree, run_tree, tiny_tree

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
PLACES = [[1, 4], [2, 2]]
ONE_DEVICE = {"stages": 1, "replicas": 1, "microbatch": 8}
VALUE_BYTES = 4


def tree_of(folder: Path, dataset: Path, **sections: Any) -> Tree:
    model = {"bottlenecks": PLACES, **sections.pop("model", {})}
    train = {"loop": "unrolled", **sections.pop("train", {})}
    return tiny_tree(folder, dataset, model=model, train=train, **sections)


def losses(metrics: list[StepMetrics]) -> list[float | None]:
    """Return the losses of the steps, then the norms of their gradients."""
    return [step.loss for step in metrics] + [step.grad_norm for step in metrics]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run_tree(tree_of(folder, dataset, plan=ONE_DEVICE))
    return folder


def of_reference(folder: Path) -> list[float | None]:
    return losses(read_metrics(folder / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("plan", "train"),
    [
        ({"stages": 3, "replicas": 1, "schedule": "zb-h1"}, {}),
        ({"stages": 2, "replicas": 2, "cut": [2, 1]}, {"loop": "scan"}),
        # Between stages of one rank nothing is sent.
        ({"stages": 3, "replicas": 1, "schedule": "interleaved-1f1b", "chunks": 3}, {}),
    ],
    ids=["each layer alone", "two stages", "one rank"],
)
def test_ranks_have_the_losses_and_norms_of_one_device(
    reference: Path,
    tmp_path: Path,
    dataset: Path,
    plan: dict[str, Any],
    train: dict[str, Any],
):
    metrics = run_tree(tree_of(tmp_path / "run", dataset, plan=plan, train=train))
    assert losses(metrics) == pytest.approx(of_reference(reference), rel=ROUNDING)


def sent_bytes(folder: Path, dataset: Path, places: list[list[int]]) -> int:
    """Return the bytes of a step of one replica of two stages, cut after one layer."""
    plan = {"stages": 2, "replicas": 1, "cut": [1, 2]}
    sections = {"model": {"bottlenecks": places, "tied": False}, "train": {"steps": 2}}
    metrics = run_tree(tree_of(folder, dataset, plan=plan, **sections))
    return metrics[-1].sent_bytes


def test_a_cut_at_a_bottleneck_sends_its_rank_both_ways(tmp_path: Path, dataset: Path):
    whole = sent_bytes(tmp_path / "whole", dataset, [])
    elsewhere = sent_bytes(tmp_path / "elsewhere", dataset, [[2, 2]])
    narrow = sent_bytes(tmp_path / "narrow", dataset, [[1, 2]])
    tokens, dim, rank = 8 * 16, 16, 2
    assert elsewhere == whole
    assert whole - narrow == 2 * tokens * (dim - rank) * VALUE_BYTES
    # Scalars of the step are the rest.
    assert narrow - 2 * tokens * rank * VALUE_BYTES < 200


def test_a_run_resumes_under_another_plan_with_its_bottlenecks(
    reference: Path, tmp_path: Path, dataset: Path
):
    folder = tmp_path / "run"
    run_tree(tree_of(folder, dataset, plan={"stages": 3, "replicas": 1}))
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    names = open_checkpoint(latest(folder)).tensors
    assert {"bottlenecks.1.down", "mu.bottlenecks.2.previous"} <= set(names)
    plan = {"stages": 2, "replicas": 2, "cut": [1, 2]}
    metrics = run_tree(tree_of(folder, dataset, plan=plan, train={"steps": 4}), resume=True)
    assert losses(metrics) == pytest.approx(of_reference(reference), rel=ROUNDING)


def test_other_bottlenecks_than_those_of_the_checkpoint_are_refused(reference: Path, dataset: Path):
    config = config_from(tree_of(reference, dataset, model={"bottlenecks": [[1, 4]]}))
    with pytest.raises(CheckpointError, match=r"`model.bottlenecks` .* must be as in the check"):
        check_run(config, resume=True)


@pytest.mark.mpi
def test_losses_and_gradients_are_those_of_one_device_over_mpi(
    reference: Path, tmp_path: Path, dataset: Path
):
    folder = tmp_path / "run"
    tree = tree_of(folder, dataset, plan={"stages": 3, "replicas": 1}, checkpoint={"every": 1})
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    command = mpi_command(3, "-m", "tests.programs.mpi_train", str(tmp_path / "tree.json"))
    subprocess.run(command, env=mpi_environment(), check=True, timeout=240)
    metrics = read_metrics(folder / "metrics.jsonl")
    assert losses(metrics) == pytest.approx(of_reference(reference), rel=ROUNDING)
    ours, theirs = (open_checkpoint(latest(path)) for path in (folder, reference))
    names = [name for name in theirs.tensors if name.startswith("mu.")]
    assert any("bottlenecks" in name for name in names)
    # The first moment is a mean of the gradients of all steps.
    computed, expected = ours.read(names), theirs.read(names)
    for name in names:
        error = np.linalg.norm(computed[name] - expected[name])
        assert error <= ROUNDING * np.linalg.norm(expected[name]), name
