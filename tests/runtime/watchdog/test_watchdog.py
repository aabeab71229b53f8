"""Watchdogs of several ranks, in one process, that find who holds them up."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue

import pytest

from jaxpipe.runtime.watchdog import (
    Cause,
    CauseKind,
    Deadlines,
    Seen,
    Watchdog,
    clear_cause,
    read_cause,
    read_heartbeats,
    write_cause,
)
from jaxpipe.runtime.watchdog.heartbeat import heartbeat_file, write_heartbeat
from jaxpipe.runtime.watchdog.process_state import ProcessLook, ProcessState
from jaxpipe.schedule import Instruction, forward, receive

PATIENCE_S = 30.0
CHAIN = {0: (), 1: (0,), 2: (1,)}


def always(ranks: tuple[int, ...]) -> Callable[[Instruction], tuple[int, ...]]:
    return lambda _: ranks


@contextmanager
def watching(
    folder: Path, chain: Mapping[int, tuple[int, ...]], *, least_s: float = 0.5
) -> Iterator[tuple[dict[int, Watchdog], Queue[Cause]]]:
    """Watch ranks that wait for each other, all of which have learned what they do."""
    causes: Queue[Cause] = Queue()
    watches: dict[int, Watchdog] = {}
    for rank, waits_for in chain.items():
        deadlines = Deadlines(least_s=least_s, unlearned_s=60.0)
        seen = Seen(
            rank=rank,
            stage=rank,
            num_ranks=len(chain),
            folder=folder,
            waits_for=always(waits_for),
        )
        watches[rank] = Watchdog(seen, deadlines, end=causes.put)
        for _ in range(20):
            learned = receive(rank, rank - 1, 3) if waits_for else forward(rank, 3)
            watches[rank].phase("read samples", step=6)
            watches[rank].at(learned)
            watches[rank].at(learned)
    for watch in watches.values():
        watch.start()
    try:
        yield watches, causes
    finally:
        for watch in watches.values():
            watch.stop()


def test_a_rank_that_hangs_is_named_with_its_instruction(tmp_path: Path) -> None:
    with watching(tmp_path, CHAIN) as (_, causes):
        cause = causes.get(timeout=PATIENCE_S)
    assert (cause.kind, cause.rank, cause.stage, cause.step) == (CauseKind.HANG, 0, 0, 7)
    assert cause.last_instruction == "forward 3"


def stop_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of all ranks look stopped."""
    stopped = ProcessLook(state=ProcessState.STOPPED, processor_s=1.0)
    monkeypatch.setattr("jaxpipe.runtime.watchdog.silence.look_at", lambda *_: stopped)


def test_a_process_that_is_stopped_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_processes(monkeypatch)
    with watching(tmp_path, CHAIN) as (watches, causes):
        watches[0].at(forward(0, 4))
        watches[0]._stopped.set()  # pyright: ignore[reportPrivateUsage]  its thread beats no more
        cause = causes.get(timeout=PATIENCE_S)
    assert (cause.kind, cause.rank, cause.step) == (CauseKind.STOPPED, 0, 7)
    assert "sends no heartbeat" in cause.message


def test_a_process_that_runs_without_heartbeats_is_slow_and_not_stopped(tmp_path: Path) -> None:
    """Its threads starve on a host with more work than cores, and its deadline has not passed."""
    with watching(tmp_path, CHAIN) as (watches, causes):
        watches[0].at(forward(0, 4))
        watches[0]._stopped.set()  # pyright: ignore[reportPrivateUsage]  this process runs
        with pytest.raises(Empty):
            causes.get(timeout=4.0)


def test_a_link_that_is_cut_is_no_fault_of_a_rank(tmp_path: Path) -> None:
    with watching(tmp_path, {0: (1,), 1: (0,)}) as (_, causes):
        cause = causes.get(timeout=PATIENCE_S)
    assert (cause.kind, cause.rank, cause.step) == (CauseKind.LINK, None, 7)
    assert cause.message.startswith("messages do not arrive between rank 0 on ")


@pytest.mark.parametrize("num_ranks", [2, 60, 600, 20_000])
def test_a_heartbeat_that_names_all_ranks_is_read(tmp_path: Path, num_ranks: int) -> None:
    """A rank in the last all-reduce of a step waits for all others, of a large run too."""
    others = tuple(range(1, num_ranks))
    seen = Seen(rank=0, stage=0, num_ranks=num_ranks, folder=tmp_path, waits_for=always(others))
    watch = Watchdog(seen, Deadlines(least_s=9.0, unlearned_s=9.0), end=lambda _: None)
    watch.at(receive(1, 0, 3))
    file = heartbeat_file(tmp_path, 0)
    file.parent.mkdir()
    sizes: set[int] = set()
    for _ in range(3):
        watch._tick(0.2)  # pyright: ignore[reportPrivateUsage]
        sizes.add(file.stat().st_size)
        assert read_heartbeats(tmp_path, range(1))[0].waits_for == others
    assert len(sizes) == 1, "always the same length"


def test_a_heartbeat_may_disappear_between_two_ticks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_processes(monkeypatch)
    causes: Queue[Cause] = Queue()
    seen = Seen(rank=1, stage=1, num_ranks=2, folder=tmp_path, waits_for=always((0,)))
    watch = Watchdog(seen, Deadlines(least_s=0.1, unlearned_s=0.1), end=causes.put)
    watch.at(receive(1, 0, 3))
    theirs = Watchdog(replace(seen, rank=0), Deadlines(least_s=0.1, unlearned_s=0.1))
    beat = theirs._heartbeat(theirs._doing)  # pyright: ignore[reportPrivateUsage]
    file = heartbeat_file(tmp_path, 0)
    file.parent.mkdir()
    write_heartbeat(file, beat, num_ranks=2)

    def tick() -> None:
        watch._tick(0.4)  # pyright: ignore[reportPrivateUsage]

    while watch._others._suspect is None:  # pyright: ignore[reportPrivateUsage]
        tick()
    file.unlink()
    tick()
    assert causes.empty()
    write_heartbeat(file, beat, num_ranks=2)
    tick()
    tick()
    assert causes.get_nowait().kind is CauseKind.STOPPED


def test_a_watchdog_continues_after_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, CHAIN) as (watches, causes):
        broken = watches[2]
        tick, errors = broken._tick, [KeyError(0)]  # pyright: ignore[reportPrivateUsage]

        def fails_once(elapsed_s: float) -> None:
            if errors:
                raise errors.pop()
            tick(elapsed_s)

        broken._tick = fails_once  # pyright: ignore[reportPrivateUsage]
        assert causes.get(timeout=PATIENCE_S).rank == 0
        assert broken.is_watching
    assert "the watchdog of rank 2 continues after" in caplog.text


def test_ranks_that_go_on_are_left_alone(tmp_path: Path) -> None:
    with watching(tmp_path, CHAIN, least_s=1.0) as (watches, causes):
        for _ in range(15):
            for rank, watch in watches.items():
                watch.at(forward(rank, 0))
            threading.Event().wait(0.1)
        assert set(read_heartbeats(tmp_path, range(3))) <= {0, 1, 2}
        with pytest.raises(Empty):
            causes.get_nowait()
    assert list((tmp_path / "watch").iterdir()) == []


def test_a_disk_may_take_its_time(tmp_path: Path) -> None:
    with watching(tmp_path, CHAIN) as (watches, causes):
        watches[0].phase("save", step=6)
        with pytest.raises(Empty):
            causes.get(timeout=3.0)


@pytest.mark.parametrize("refused", ["write_bytes", "mkdir"])
def test_a_folder_that_refuses_writes_costs_a_warning(
    tmp_path: Path,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in (refused, "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    cause = Cause(kind=CauseKind.ERROR, message="ValueError: no", rank=2, stage=0, step=1)
    assert not write_cause(tmp_path / "run", cause)
    assert f"Read-only file system: {cause}" in caplog.text


def test_the_first_cause_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert read_cause(run) is None
    first = Cause(kind=CauseKind.ERROR, message="ValueError: no", rank=2, stage=0, step=1)
    assert write_cause(run, first)
    assert not write_cause(run, Cause(kind=CauseKind.HANG, message="because of it", rank=0))
    assert read_cause(run) == first
    assert [path.name for path in run.iterdir()] == ["cause.json"]
    clear_cause(run)
    assert read_cause(run) is None
    (run / "cause.json").write_text("{")
    assert read_cause(run) is None
