"""The islands of the tuned experiment, which are one process, against runs with ranks."""

from pathlib import Path
from typing import Any

import pytest

from experiments.outer.tuned import Cell, Islands
from jaxpipe.config import config_from
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow

RATE = 1e-2


@pytest.mark.parametrize(
    ("cell", "outer"),
    [
        (Cell(islands=1, every=0, inner_rate=RATE, seed=1), {}),
        (
            Cell(islands=2, every=2, inner_rate=RATE, outer_rate=0.6, momentum=0.5, seed=1),
            {"islands": 2, "every": 2, "learning_rate": 0.6, "momentum": 0.5},
        ),
        (
            Cell(islands=2, every=2, inner_rate=RATE, momentum=0.5, seed=1, eager=True),
            {"islands": 2, "every": 2, "learning_rate": 1.0, "momentum": 0.5, "eager": True},
        ),
    ],
)
def test_losses_are_those_of_a_run_with_ranks(
    tmp_path: Path, dataset: Path, cell: Cell, outer: dict[str, Any]
) -> None:
    plan = {"stages": 1, "replicas": 2}
    tree = tiny_tree(tmp_path / "run", dataset, plan=plan, outer=outer, train={"eval_batches": 2})
    metrics = run_tree(tree)
    assert metrics[0].loss > 1.05 * metrics[-1].loss, "the model must learn"
    assert Islands(config_from(tree)).train(cell) == pytest.approx(metrics[-1].eval_loss, rel=1e-5)
