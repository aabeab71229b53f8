"""The metrics of a run survive a disk without room."""

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpipe.runtime.metrics import records
from jaxpipe.runtime.metrics.records import MetricsFile, StepMetrics, read_metrics


def test_metrics_wait_for_room_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each step has its line in the end, in order, though two could not be written in time."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, {}, first_step=0)
    file.write(_step(1))
    with caplog.at_level(logging.WARNING), _no_room(path):
        file.write(_step(2))
        file.write(_step(3))
    assert [metrics.step for metrics in read_metrics(path)] == [1]
    assert len(caplog.records) == 1, "one warning for a disk that stays full"
    assert "the metrics of step 2 wait" in caplog.text
    file.write(_step(4))
    assert read_metrics(path) == [_step(number) for number in (1, 2, 3, 4)]
    assert "the metrics of 2 steps that had to wait are written" in caplog.text


def test_only_so_many_lines_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is never emptied does not fill the memory: the oldest lines are lost."""
    monkeypatch.setattr(records, "MAX_WAITING_LINES", 2)
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, {}, first_step=0)
    with _no_room(path):
        for number in (1, 2, 3):
            file.write(_step(number))
    file.write(_step(4))
    assert [metrics.step for metrics in read_metrics(path)] == [3, 4]


@contextmanager
def _no_room(path: Path) -> Iterator[None]:
    """Let a file of this process grow by no more than a part of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _step(number: int) -> StepMetrics:
    return StepMetrics(
        step=number,
        loss=5.0 / number,
        eval_loss=None,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_s=0.1,
        tokens_per_s=100.0,
        bubble=0.1,
        sent_bytes=1,
        flops_per_s=1e6,
    )
