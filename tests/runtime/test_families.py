"""A decoder of the Llama type, with Muon and WSD, through the whole runtime; and resumed."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles.llamas import GEMMA
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow


def tree_of(folder: Path, dataset: Path) -> dict[str, dict[str, Any]]:
    tree = tiny_tree(folder, dataset, plan={"stages": 2, "replicas": 1})
    tree["model"] = {**asdict(GEMMA), "vocabulary": 256, "sequence": 16}
    tree["optimizer"] |= {"name": "muon", "schedule": "wsd"}
    return tree


def test_it_learns_and_a_resumed_run_has_the_same_losses(tmp_path: Path, dataset: Path) -> None:
    whole = run_tree(tree_of(tmp_path / "whole", dataset))
    assert whole[-1].loss < whole[0].loss
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-00000004")
    resumed = run_tree(tree_of(tmp_path / "half", dataset), resume=True)
    assert [each.step for each in resumed[-2:]] == [3, 4]
    np.testing.assert_allclose(
        [each.loss for each in resumed[-2:]], [each.loss for each in whole[-2:]], rtol=1e-5
    )
