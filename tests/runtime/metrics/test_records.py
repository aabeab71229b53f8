"""The metrics of a run survive a disk without room, and a file with a damaged line."""

import json
import logging
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.runtime.metrics import metrics_file, records
from jaxpipe.runtime.metrics.metrics_file import MetricsFile
from jaxpipe.runtime.metrics.records import (
    StepMetrics,
    ThinnedLosses,
    last_step,
    read_metrics,
    read_summary,
    stream_metrics,
)
from jaxpipe.runtime.storage.checksum import sealed_line


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
    monkeypatch.setattr(metrics_file, "MAX_WAITING_LINES", 2)
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


STEPS = 3


@settings(deadline=None, max_examples=200)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_its_line_alone_and_is_named(position: float, bit: int) -> None:
    """Whatever is read is what was written: a digit that has changed is never one of the run's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        written(path, steps=STEPS)
        content = bytearray(path.read_bytes())
        index = int(position * len(content))
        line = content.count(b"\n", 0, index) + 1
        content[index] ^= 1 << bit
        path.write_bytes(content)
        with _warnings() as messages:
            steps = read_metrics(path)
        assert all(step == _step(step.step) for step in steps)
        # Without its line break, a line is joined to the next one.
        num_lost = STEPS - len(steps)
        assert num_lost <= 2
        if num_lost:
            (message,) = messages
            assert message.startswith(str(path))
            assert f"the first in line {line}: " in message
        summary = read_summary(path, level=logging.DEBUG)
        assert [step for step, _ in summary.losses] == [step.step for step in steps]
        last_step(path)
        # Lines of steps that are repeated are dropped, and the damaged one with them.
        MetricsFile(path, {"config": {}}, first_step=2).write(_step(3))
        assert [step for step in read_metrics(path) if step.step == 3] == [_step(3)]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the messages of warnings; a fixture would keep those of all examples."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    records.logger.addHandler(handler)
    try:
        yield messages
    finally:
        records.logger.removeHandler(handler)


def test_lines_before_checksums_are_read_and_those_after_need_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Old attempts have none; in an attempt that has them, a line without one is damaged."""
    path = tmp_path / "metrics.jsonl"
    old = [{"run": {"checksum": "0123456789abcdef"}}, *(asdict(_step(step)) for step in (1, 2))]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in old))
    MetricsFile(path, {}, first_step=2).write(_step(3))
    assert [step.step for step in read_metrics(path)] == [1, 2, 3]
    assert not caplog.messages
    with path.open("a") as file:
        file.write(json.dumps(asdict(_step(4))) + "\n")
    assert [step.step for step in read_metrics(path)] == [1, 2, 3]
    assert "the first in line 6: `checksum` is missing" in caplog.text


@given(most=st.integers(2, 20), count=st.integers(0, 200))
def test_thinned_losses_are_bounded_and_have_both_ends(most: int, count: int) -> None:
    losses = ThinnedLosses(most=most)
    for step in range(1, count + 1):
        losses.append(step, step / 2)
    steps = [step for step, _ in losses.points()]
    assert len(steps) <= most
    assert losses.points() == tuple((step, step / 2) for step in steps)
    assert steps[:1] + steps[1:][-1:] == [1, count][: min(count, 2)]
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert len(gaps) <= 1


def test_a_long_file_is_read_in_constant_memory(tmp_path: Path) -> None:
    """Eight thousand steps, over 2 MB, are never in memory together."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, {"config": {}}, first_step=0)
    # Opened for each step, the file would take most of the test.
    with path.open("a") as opened:
        opened.writelines(sealed_line(asdict(_step(step))) for step in range(1, 8_000))
    file.write(_step(8_000))
    assert path.stat().st_size > 2e6
    readers: dict[str, Callable[[], object]] = {
        "summary": lambda: read_summary(path),
        "last step": lambda: last_step(path),
        "metrics": lambda: sum(1 for _ in stream_metrics(path)),
        "resumed": lambda: MetricsFile(path, {}, first_step=4_000),
    }
    for name, read in readers.items():
        tracemalloc.start()
        read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1e6, f"{name} takes {peak / 1e6:.1f} MB"


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
