"""A decoder of the Llama type, with two optimizers, through the whole runtime; and resumed."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles.llamas import GEMMA
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow


def tree_of(
    folder: Path, dataset: Path, optimizer: dict[str, str], *, stages: int = 2
) -> dict[str, dict[str, Any]]:
    tree = tiny_tree(folder, dataset, plan={"stages": stages, "replicas": 1})
    tree["model"] = {**asdict(GEMMA), "vocabulary": 256, "sequence": 16}
    tree["optimizer"] |= optimizer
    return tree


@pytest.mark.parametrize(
    ("optimizer", "stages"),
    [
        ({"name": "muon", "schedule": "wsd"}, 2),
        # Its moments have other shapes than their parameters: also on another partition.
        ({"name": "adafactor"}, 1),
    ],
)
def test_it_learns_and_a_resumed_run_has_the_same_losses(
    optimizer: dict[str, str], stages: int, tmp_path: Path, dataset: Path
) -> None:
    whole = run_tree(tree_of(tmp_path / "whole", dataset, optimizer))
    # Held-out: training losses of so few steps are those of unlike batches.
    held_out = [each.eval_loss for each in whole if each.eval_loss is not None]
    assert held_out[-1] < held_out[0]
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-00000004")
    tree = tree_of(tmp_path / "half", dataset, optimizer, stages=stages)
    resumed = run_tree(tree, resume=True)
    assert [each.step for each in resumed[-2:]] == [3, 4]
    np.testing.assert_allclose(
        [each.loss for each in resumed[-2:]], [each.loss for each in whole[-2:]], rtol=1e-5
    )
