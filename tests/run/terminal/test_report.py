"""The report at the end of a run warns of a model that is of no use."""

from pathlib import Path

import pytest
from rich.console import Console

from jaxpipe.config import config_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.rank.threads import train
from jaxpipe.run.terminal.report import report_end
from tests.runtime.training import tiny_tree


@pytest.mark.slow
@pytest.mark.parametrize(("learning_rate", "warns"), [(1e30, True), (1e-3, False)])
def test_a_model_of_no_use_is_not_praised(
    tmp_path: Path,
    dataset: Path,
    caplog: pytest.LogCaptureFixture,
    learning_rate: float,
    warns: bool,
) -> None:
    tree = tiny_tree(
        tmp_path,
        dataset,
        train={"steps": 3},
        plan={"stages": 1, "replicas": 1},
        optimizer={"learning_rate": learning_rate, "warmup_steps": 0},
    )
    config = config_from(tree)
    report_end(Console(), config, plan_from(config), train(config))
    assert ("the last loss is nan, so the model is of no use" in caplog.text) == warns
