"""Trackers log every step once, and no failure of theirs reaches the training."""

import json
import logging
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.metrics.metrics_file import MetricsFile
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.metrics.trackers import (
    BackgroundTracker,
    TrackedRun,
    Trackers,
    check_installed,
)
from jaxpipe.runtime.metrics.trackers import trackers as installed
from jaxpipe.runtime.run_config import TrackerKind
from jaxpipe.trace import LinkReport, LinkUse
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow

ONE_RANK = {"stages": 1, "replicas": 1}


def metrics_at(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=1.0 / step,
        eval_loss=None,
        grad_norm=None,
        learning_rate=0.5,
        step_s=0.25,
        tokens_per_s=4.0,
        bubble=0.0,
        sent_bytes=3,
        flops_per_s=2.0,
    )


def test_links_are_logged_by_their_ends_and_their_traffic(tmp_path: Path) -> None:
    link = LinkUse(
        source="rank 0",
        to="rank 1",
        traffic="all",
        num_messages=1,
        num_bytes=6,
        timed_bytes=6,
        seconds=2.0,
        goodput_bytes_per_s=3.0,
        efficiency=None,
    )
    values: dict[str, float] = {}
    maker: Any = SimpleNamespace(log=lambda _, given: values.update(given), close=lambda: None)
    trackers = Trackers(
        [TrackerKind.WANDB], tracked(tmp_path), makers={TrackerKind.WANDB: lambda _: maker}
    )
    report = LinkReport(first_step=1, regions=(), ranks=(link,))
    trackers.log(replace(metrics_at(2), links=report))
    trackers.close()
    assert {name: value for name, value in values.items() if "/" in name} == {
        "links/rank_0-rank_1/all/num_bytes": 6.0,
        "links/rank_0-rank_1/all/seconds": 2.0,
        "links/rank_0-rank_1/all/goodput_bytes_per_s": 3.0,
    }


def tracked(folder: Path, *, first_step: int = 0, logged_step: int = 0) -> TrackedRun:
    return TrackedRun(
        folder=folder,
        project="tests",
        key="abcd",
        first_step=first_step,
        logged_step=logged_step,
        description={"config": {"run": {"folder": "x"}}},
    )


def events_in(folder: Path) -> Iterator[Any]:
    """Yield the events of all files, in the order of their names, as TensorBoard does.

    A record is its length in 8 bytes, their checksum in 4, the event, and its checksum in 4.
    """
    records = pytest.importorskip("tensorboardX.proto.event_pb2")
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack_from("<Q", content)
            yield records.Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return the points that TensorBoard draws: a file that begins drops what older ones had."""
    points: list[tuple[int, float]] = []
    for event in events_in(folder):
        if event.HasField("session_log"):
            points = [point for point in points if point[0] < event.step]
        found = [value.simple_value for value in event.summary.value if value.tag == name]
        points += [(event.step, value) for value in found]
    return points


def test_tensorboard_reads_a_curve_that_goes_on_where_the_run_does(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    for first_step, steps in ((0, range(1, 6)), (3, range(4, 8))):
        trackers = Trackers([TrackerKind.TENSORBOARD], tracked(tmp_path, first_step=first_step))
        for step in steps:
            trackers.log(metrics_at(step))
        trackers.close()
    folder = tmp_path / "tensorboard"
    assert curve(folder, "loss") == [(n, pytest.approx(1 / n)) for n in range(1, 8)]
    assert curve(folder, "sent_bytes") == [(n, 3.0) for n in range(1, 8)]
    assert curve(folder, "eval_loss") == curve(folder, "step") == []


@pytest.mark.slow
def test_a_run_and_its_resumption_are_one_curve(tmp_path: Path, dataset: Path):
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "run"
    sections = {"run": {"trackers": ["tensorboard"]}, "plan": {"stages": 2, "replicas": 1}}
    run_tree(tiny_tree(folder, dataset, **sections, train={"steps": 2}))
    metrics = run_tree(tiny_tree(folder, dataset, **sections, train={"steps": 4}), resume=True)
    files = list((folder / "tensorboard").iterdir())
    assert len(files) == 2  # of rank 0 alone
    drawn = curve(folder / "tensorboard", "loss")
    assert drawn == [(each.step, pytest.approx(each.loss)) for each in metrics]
    assert [step for step, _ in drawn] == [1, 2, 3, 4]


class FakeRun:
    """What `init` of W&B and trackio returns, as far as it is used; it records all calls."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.num_finished = 0

    def init(self, **begun: Any) -> "FakeRun":
        self.begun.append(begun)
        return self

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.num_finished += 1


@pytest.mark.parametrize(
    ("kind", "identity", "begins"),
    [
        (TrackerKind.WANDB, {"id": "abcd", "name": "run-abcd", "project": "tests"}, None),
        (TrackerKind.TRACKIO, {"name": "run-abcd", "project": "tests"}, "never"),
    ],
)
def test_a_run_that_goes_on_is_the_same_one_and_doubles_no_step(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: TrackerKind,
    identity: dict[str, str],
    begins: str | None,
):
    fake = FakeRun()
    module = SimpleNamespace(init=fake.init, Settings=lambda **given: given)
    monkeypatch.setitem(sys.modules, kind.value, module)
    for first_step, logged_step, steps in ((0, 0, range(1, 6)), (3, 5, range(4, 8))):
        about = tracked(tmp_path / "run", first_step=first_step, logged_step=logged_step)
        trackers = Trackers([kind], about)
        for step in steps:
            trackers.log(metrics_at(step))
        trackers.close()
    assert [step for step, _ in fake.logged] == list(range(1, 8))
    assert fake.logged[1][1]["loss"] == 0.5
    assert set(fake.logged[1][1]) == {
        *("loss", "learning_rate", "step_s", "tokens_per_s", "bubble", "sent_bytes"),
        *("flops_per_s", "skipped_steps"),
    }
    assert fake.num_finished == 2
    assert [{name: begun[name] for name in identity} for begun in fake.begun] == [identity] * 2
    assert [begun["resume"] for begun in fake.begun] == [begins, "allow"]


class Broken:
    """A tracker that raises at a step, or at its end."""

    def __init__(self, *, step: int) -> None:
        self._step = step

    def log(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
        if step == self._step:
            raise OSError("no space\nleft")

    def close(self) -> None:
        raise OSError("no network")


@pytest.mark.parametrize(("step", "text"), [(2, "no space left"), (9, "no network")])
def test_a_tracker_that_fails_is_reported_once(
    caplog: pytest.LogCaptureFixture, step: int, text: str
):
    caplog.set_level(logging.WARNING)
    background = BackgroundTracker("fake", lambda: Broken(step=step))
    for number in range(1, 5):
        background.log(number, {"loss": 1.0})
    background.close(timeout_s=30.0)
    expected = f"training continues without the tracker fake: OSError: {text}"
    assert [record.message for record in caplog.records] == [expected]


@pytest.mark.slow
def test_a_tracker_that_cannot_be_made_ends_no_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dataset: Path
):
    def refuse(**_: Any) -> None:
        raise ConnectionError("no network")

    fake = SimpleNamespace(init=refuse, Settings=lambda **given: given)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sections = {"run": {"trackers": ["wandb"]}, "plan": ONE_RANK}
    metrics = run_tree(tiny_tree(tmp_path, dataset, **sections, train={"steps": 2}))
    assert len(metrics) == 2
    warnings = [record.message for record in caplog.records if "wandb" in record.message]
    expected = "training continues without the tracker wandb: ConnectionError: no network"
    assert warnings == [expected]


class Hanging:
    """A tracker that blocks until it is released."""

    def __init__(self, release: Event) -> None:
        self._release = release

    def log(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
        self._release.wait()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("num_steps", "why"), [(2, "did not finish within 0.05 s"), (9, "3 steps behind")]
)
def test_a_tracker_that_hangs_is_left_alone(
    caplog: pytest.LogCaptureFixture, num_steps: int, why: str
):
    release = Event()
    background = BackgroundTracker("fake", lambda: Hanging(release), max_steps_behind=3)
    for step in range(num_steps):
        background.log(step, {})
    background.close(timeout_s=0.05)
    release.set()
    assert len(caplog.records) == 1
    assert why in caplog.records[0].message


def test_closing_takes_no_longer_than_its_timeout(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    began, took_one, never = Event(), Event(), Event()

    class Slow(Hanging):
        def log(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
            began.set()
            (never if step else took_one).wait(10.0)

    background = BackgroundTracker("fake", lambda: Slow(never), max_steps_behind=1)
    background.log(0, {})
    assert began.wait(10.0)
    background.log(1, {})
    # There is room for the end only after 0.9 s of the second.
    timer = Timer(0.9, took_one.set)
    timer.start()
    start_s = time.monotonic()
    background.close(timeout_s=1.0)
    took_s = time.monotonic() - start_s
    never.set()
    timer.join()
    assert took_s < 1.5
    assert "it did not finish within 1 s" in caplog.text


def test_trackers_that_hang_have_one_time_to_finish_together(caplog: pytest.LogCaptureFixture):
    never = Event()
    hanging = [BackgroundTracker(f"fake {number}", lambda: Hanging(never)) for number in range(3)]
    for background in hanging:
        background.log(0, {})
        background.end()
        background.close(timeout_s=30.0, since_s=time.monotonic() - 30.0)
    never.set()
    assert [record.getMessage() for record in caplog.records] == [
        f"training continues without the tracker fake {number}: it did not finish within 30 s"
        for number in range(3)
    ]


def test_without_trackers_there_is_nothing_to_wait_for(tmp_path: Path):
    trackers = Trackers([], tracked(tmp_path))
    trackers.log(metrics_at(1))
    trackers.close()
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch):
    check_installed(())
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    words = r"`run.trackers` has wandb, and wandb is not installed; pip install 'jaxpipe\[wandb\]'"
    with pytest.raises(ConfigError, match=words):
        check_installed([TrackerKind.WANDB])


def begun(path: Path, *, first_step: int, key: str, steps: range) -> tuple[str, int]:
    """Write the steps of one attempt, and return what the file says of the run."""
    file = MetricsFile(path, {"attempt": key}, first_step=first_step, key=key)
    for step in steps:
        file.write(metrics_at(step))
    return file.key, file.logged_step


def test_a_run_keeps_its_key_and_knows_how_far_it_ever_came(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    assert begun(path, first_step=0, key="a", steps=range(1, 8)) == ("a", 0)
    assert begun(path, first_step=4, key="b", steps=range(5, 6)) == ("a", 7)
    assert begun(path, first_step=5, key="c", steps=range(6, 10)) == ("a", 7)
    assert begun(path, first_step=9, key="d", steps=range(10, 11)) == ("a", 9)
    steps = [row["step"] for row in map(json.loads, path.read_text().splitlines()) if "step" in row]
    assert steps == list(range(1, 11))
    assert begun(path, first_step=0, key="e", steps=range(1, 2)) == ("e", 0)


def test_a_file_of_before_there_were_keys_gets_one(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"run": {}}\n{"step": 3}\n')
    assert begun(path, first_step=2, key="b", steps=range(3, 4)) == ("b", 3)
    assert begun(path, first_step=3, key="c", steps=range(4, 5)) == ("b", 3)
