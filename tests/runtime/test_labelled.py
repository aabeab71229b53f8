"""Models of labels train in a pipeline as on one rank: pictures with experts, and text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import restored_model
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.data import Labelled, prepare_labelled
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow

ENCODER: dict[str, Any] = {
    "num_layers": 2,
    "dim": 8,
    "num_heads": 2,
    "sequence": 5,
    "vocabulary": 256,
    "tied": False,
    "causal": False,
    "classes": 2,
}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "text": (ENCODER, (5,)),
    "pictures": (
        ENCODER | {"patch": 2, "channels": 3, "experts": 2, "balance_loss": 0.1},
        (4, 4, 3),
    ),
}


def bright_and_dark(folder: Path, shape: tuple[int, ...]) -> Path:
    """Prepare samples of two classes whose inputs are from different halves of all values."""
    random = np.random.default_rng(0)
    labels = (np.arange(60) % 2).astype(np.uint8)
    inputs = random.integers(0, 128, (60, *shape)) + 128 * labels.reshape(-1, *[1] * len(shape))
    samples = Labelled(
        inputs=inputs.astype(np.uint8), labels=labels, classes=("dark", "bright"), source="drawn"
    )
    prepare_labelled(samples, folder, eval_fraction=0.2)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_a_pipeline_learns_labels_as_one_rank_does(name: str, tmp_path: Path) -> None:
    model, shape = MODELS[name]
    data = bright_and_dark(tmp_path / "data", shape)
    runs = {}
    for stages in (1, 2):
        tree = tiny_tree(
            tmp_path / f"run{stages}",
            data,
            model=model,
            plan={"stages": stages, "replicas": 1, "microbatch": 2},
            train={"steps": 40, "batch": 4, "eval_every": 20, "loop": "scan"},
            optimizer={"learning_rate": 1e-2},
            run={"timeout_s": 280.0},
        )
        tree["model"] = dict(model)
        runs[stages] = run_tree(tree)
    one, two = (
        [(each.loss, each.eval_loss or 0.0, each.grad_norm or 0.0) for each in runs[stages]]
        for stages in (1, 2)
    )
    # Rounding errors grow with the steps.
    np.testing.assert_allclose(one[:8], two[:8], rtol=1e-4)
    np.testing.assert_allclose(one, two, rtol=0.05)
    # Of two classes: chance is log 2 = 0.69 nats per sample, not per position.
    assert 0.5 < one[0][1] < 1.0
    assert one[-1][1] < one[0][1] - 0.1
    restored, _ = restored_model(open_checkpoint(latest(tmp_path / "run2")))
    assert restored.num_layers == 2
