"""bfloat16 gives the losses of float32, within bounds that are measured and stated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.training import run_tree, small_tree, write_dataset

pytestmark = pytest.mark.slow

LOSS_WITHIN = 2e-3
"""The largest relative difference of a loss in 10 steps, as `docs/guide/optimizers.md` has it."""

STEPS = 10
SIZES: dict[str, Any] = {"dim": 32, "sequence": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZES,
    "llama": {
        **SIZES,
        "family": "llama",
        "num_heads": 4,
        "num_kv_heads": 2,
        "hidden": 64,
        "qk_norm": True,
    },
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"))


def losses(
    folder: Path, dataset: Path, model: dict[str, Any], *, stages: int, **optimizer: Any
) -> np.ndarray:
    """Return the losses of each step, and the held-out ones."""
    tree = small_tree(
        folder,
        dataset,
        model=model,
        plan={"stages": stages, "replicas": 1, "microbatch": 4},
        train={"steps": STEPS, "eval_every": STEPS},
        optimizer={"learning_rate": 3e-3, "warmup_steps": 5, **optimizer},
        checkpoint={"every": STEPS},
    )
    metrics = run_tree(tree)
    held_out = [each.eval_loss for each in metrics if each.eval_loss is not None]
    return np.array([each.loss for each in metrics] + held_out)


@pytest.mark.parametrize(("name", "stages"), [("gpt", 1), ("llama", 2)])
def test_losses_are_those_of_float32(tmp_path: Path, dataset: Path, name: str, stages: int) -> None:
    exact = losses(tmp_path / "exact", dataset, MODELS[name], stages=1)
    short = {**MODELS[name], "compute_dtype": "bfloat16"}
    found = losses(tmp_path / "found", dataset, short, stages=stages)
    apart = np.abs(found - exact) / exact
    assert 0 < apart.max() <= LOSS_WITHIN, apart


def test_rounded_parameters_are_further_away_unless_they_have_masters(
    tmp_path: Path, dataset: Path
) -> None:
    """The bound is one that a coarser computation does not keep."""
    exact = losses(tmp_path / "exact", dataset, MODELS["gpt"], stages=1)
    rounded = {**MODELS["gpt"], "compute_dtype": "bfloat16", "param_dtype": "bfloat16"}
    apart = {
        masters: np.abs(
            losses(tmp_path / str(masters), dataset, rounded, stages=1, master_weights=masters)
            / exact
            - 1
        ).max()
        for masters in (False, True)
    }
    assert apart[True] <= LOSS_WITHIN < apart[False]
