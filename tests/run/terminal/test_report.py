"""The report at the end of a run warns of a model of no use, and fails for nothing beside it."""

import errno
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from jaxpipe.config import config_from
from jaxpipe.errors import optional_output
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.rank.threads import train
from jaxpipe.run.terminal.report import report_end
from tests.runtime.training import tiny_tree

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]


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


def test_what_is_beside_the_result_does_not_fail_it(
    tmp_path: Path, dataset: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    sections = {"run": {"pictures": True}, "sample": {"tokens": 4}}
    single = {"stages": 1, "replicas": 1}
    tree = tiny_tree(tmp_path, dataset, train={"steps": 1}, plan=single, **sections)
    config = config_from(tree)
    for place in (
        "jaxpipe.runtime.metrics.trace_file.write_chrome",
        "jaxpipe.runtime.metrics.trace_file.plot",
        "jaxpipe.run.terminal.report.sample_text",
        "jaxpipe.run.terminal.report.draw_losses",
    ):
        monkeypatch.setattr(place, full)
    outcome = train(config)
    report_end(Console(), config, plan_from(config), outcome)
    assert outcome.trace is outcome.picture is None
    for name in ("the trace", "the timeline", "the sample", "the picture of the losses"):
        assert f"{name} was not written: [Errno 28] No space left on device" in caplog.text


def test_a_mistake_in_what_is_beside_the_result_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with optional_output("the picture"):
        raise ValueError("no such colour")
    assert "the picture was not written: ValueError: no such colour" in caplog.text
