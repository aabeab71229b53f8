"""Islands that train a part of their parameters: what they send, what stays, what they resume."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import config_from
from jaxpipe.config.tuning import tuned_model_from
from jaxpipe.outer import OuterAction
from jaxpipe.paced import planned_outer
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import Checkpoint, latest, open_checkpoint
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_metrics
from jaxpipe.runtime.stage.trained import is_trained
from jaxpipe.schedule import Remat
from tests.finetune.test_tuned_runs import begin
from tests.runtime.training import Tree, run_tree, small_tree

pytestmark = pytest.mark.slow

LOOP = {"islands": 2, "every": 4, "fragments": 2, "delay": 1, "local_fraction": 0.3}
PARTS: dict[str, dict[str, Any]] = {
    "adapters": {"lora": {"rank": 2}, "model": {"tied": True}},
    "a frozen embedding": {"train": {"frozen": ["embed.*"]}, "model": {"tied": True}},
    "a frozen layer": {"train": {"frozen": ["blocks.0.*"]}, "outer": {"eager": True, "delay": 0}},
}


def tree_of(folder: Path, dataset: Path, name: str, **sections: Any) -> Tree:
    part = PARTS[name]
    changes = {
        "plan": {"stages": 2, "replicas": 4},
        "paced": {"tflops": 1.0},
        "checkpoint": {"every": 1, "keep": 9},
        **part,
        "train": {"steps": 8, **part.get("train", {})},
        "outer": {**LOOP, **part.get("outer", {}), **sections.get("outer", {})},
    }
    if changes["outer"].get("eager"):
        changes["outer"]["local_fraction"] = 0.0
    return small_tree(folder, dataset, **changes)


@pytest.fixture(scope="module", params=PARTS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dataset: Path
) -> tuple[str, Tree, Path]:
    """Train a part of an imported model; return its name, configuration and folder."""
    folder = tmp_path_factory.mktemp("islands") / "run"
    tree = tree_of(folder, dataset, request.param)
    begin({section: fields for section, fields in tree.items() if section != "outer"})
    run_tree(tree, resume=True)
    return request.param, tree, folder


def newest(folder: Path) -> Checkpoint:
    return open_checkpoint(latest(folder))


def test_what_is_frozen_stays_and_is_not_sent(run: tuple[str, Tree, Path]):
    _, tree, folder = run
    config = config_from(tree)
    plan, model = plan_from(config), tuned_model_from(config)
    first, last = open_checkpoint(folder / "checkpoints" / "step-00000000"), newest(folder)
    assert last.step == 8
    frozen = {name for name in first.tensors if not is_trained(model, name)}
    assert frozen
    for name in first.tensors:
        stays = first.read([name])[name].tobytes() == last.read([name])[name].tobytes()
        assert stays == (name in frozen), name
    momenta = {
        name.removeprefix("momentum.") for name in last.tensors if name.startswith("momentum.")
    }
    assert momenta.isdisjoint(frozen)
    # What the anchor has, and nothing else, crosses between two islands: once in each direction.
    planned = planned_outer(
        plan, conditions_of(config, remat=Remat.NONE), config.outer, num_steps=8
    )
    num_bytes = {
        bucket: num_bytes
        for bucket, num_bytes in planned.bucket_bytes.items()
        if bucket.stage == 0 or not bucket.is_tied
    }
    assert sum(num_bytes.values()) == 4 * sum(last.read([name])[name].size for name in momenta)
    num_sends = Counter(
        fragment
        for done in range(1, 9)
        for action, fragment in planned.timetable.events(done)
        if action is OuterAction.SEND
    )
    sent = [each.outer_bytes or 0 for each in read_metrics(folder / METRICS_FILE)]
    assert sum(sent) == sum(2 * n * num_sends[bucket.fragment] for bucket, n in num_bytes.items())


@pytest.mark.parametrize("step", [3, 5])
def test_it_resumes_bit_by_bit(
    run: tuple[str, Tree, Path], dataset: Path, tmp_path: Path, step: int
):
    name, _, whole = run
    folder = tmp_path / "resumed"
    shutil.copytree(whole, folder)
    for later in range(step + 1, 9):
        shutil.rmtree(folder / "checkpoints" / f"step-{later:08}")
    run_tree(tree_of(folder, dataset, name), resume=True)
    resumed, unbroken = newest(folder), newest(whole)
    assert resumed.tensors.keys() == unbroken.tensors.keys()
    for tensor in resumed.tensors:
        values = [each.read([tensor])[tensor] for each in (resumed, unbroken)]
        assert values[0].tobytes() == values[1].tobytes(), tensor


def test_other_islands_continue_from_their_mean(
    run: tuple[str, Tree, Path], dataset: Path, tmp_path: Path
):
    name, _, whole = run
    for number, islands in enumerate((0, 4)):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        for later in range(6, 9):
            shutil.rmtree(folder / "checkpoints" / f"step-{later:08}")
        outer = {"islands": islands} if islands else {}
        tree = tree_of(folder, dataset, name, outer=outer)
        if not islands:
            del tree["outer"]
        metrics = run_tree(tree, resume=True)
        assert [each.step for each in metrics][-1] == 8
        assert all(np.isfinite(each.loss) for each in metrics)
