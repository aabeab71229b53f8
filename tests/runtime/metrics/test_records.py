"""The metrics of a run survive a disk without room, and a file with a damaged line."""

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.runtime.metrics import records
from jaxpipe.runtime.metrics.records import (
    MetricsFile,
    StepMetrics,
    last_step,
    read_description,
    read_metrics,
    read_truth,
)


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


def written(path: Path, *, steps: int) -> MetricsFile:
    file = MetricsFile(path, {"config": {}}, first_step=0, key="k")
    for step in range(1, steps + 1):
        file.write(_step(step))
    return file


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_flipped_bit_costs_one_line_and_no_run(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        written(path, steps=3)
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        steps = read_metrics(path)
        # A line break that is damaged, or comes about, joins or splits two lines.
        assert len(steps) >= 1
        read_description(path)
        read_truth(path)
        last_step(path)
        MetricsFile(path, {"config": {}}, first_step=2).write(_step(3))
        assert read_metrics(path)[-1].step == 3


@pytest.mark.parametrize(
    "line", [b"[" * 5000 + b"}", b'{"a": "\xff"}', b"x}", b'{"run": 5}', b"{}"]
)
def test_a_damaged_line_is_named_and_left_out(
    line: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, steps=2)
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert [step.step for step in read_metrics(path)] == [1, 2]
    assert "damaged lines, which are passed over: 1, the first in line 4" in caplog.text
