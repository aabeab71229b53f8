"""Steps whose gradients are not finite change nothing, with a scaled loss or without."""

from pathlib import Path

import pytest

from jaxpipe.errors import RunError
from jaxpipe.runtime.metrics.records import read_metrics
from tests.runtime.training import run_tree, tiny_tree


@pytest.mark.slow
def test_three_in_a_row_end_the_run(tmp_path: Path, dataset: Path) -> None:
    optimizer = {"learning_rate": 1e38, "warmup_steps": 0}
    checkpoint = {"every": 1, "keep": 9}
    tree = tiny_tree(
        tmp_path,
        dataset,
        model={"num_layers": 2},
        optimizer=optimizer,
        checkpoint=checkpoint,
        train={"steps": 20, "eval_every": 100},
    )
    with pytest.raises(RunError, match=r"those of steps \d+ to \d+ were not, and changed nothing"):
        run_tree(tree)
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    assert metrics[0].grad_norm is not None
    assert [m.grad_norm for m in metrics[-3:]] == [None] * 3
    assert [m.skipped_steps for m in metrics[-4:]] == [0, 1, 2, 3]
