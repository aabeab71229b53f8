"""Watchdogs of ranks with a folder each: heartbeats and causes cross as messages."""

import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from threading import Barrier, Event

import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.runtime.watchdog import (
    Cause,
    CauseKind,
    Deadlines,
    Seen,
    Watchdog,
    read_cause,
    read_heartbeats,
    write_cause,
)
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat
from jaxpipe.runtime.watchdog.heartbeat_exchange import HeartbeatExchange
from jaxpipe.runtime.watchdog.process_state import ProcessLook, ProcessState
from jaxpipe.schedule import Instruction, forward, receive

PATIENCE_S = 30.0
CHAIN = {0: (), 1: (0,), 2: (1,)}


def watchdog_of(
    transport: Transport, root: Path, end: Callable[[Cause], object], *, least_s: float
) -> Watchdog:
    rank, folder = transport.rank, root / f"host-{transport.rank}"

    def waits_for(_: Instruction) -> tuple[int, ...]:
        return CHAIN[rank]

    def meet() -> HeartbeatExchange:
        def keep(cause: Cause) -> None:
            write_cause(folder, cause)

        others = [other for other in CHAIN if other != rank]
        return HeartbeatExchange(transport, others, on_cause=keep)

    seen = Seen(rank=rank, stage=rank, num_ranks=3, folder=folder, waits_for=waits_for)
    watch = Watchdog(seen, Deadlines(least_s=least_s, unlearned_s=60.0), end=end, meet=meet)
    for _ in range(20):
        watch.phase("read samples", step=6)
        watch.at(receive(rank, rank - 1, 3) if waits_for(forward(rank, 3)) else forward(rank, 3))
        watch.at(receive(rank, rank - 1, 3) if rank else forward(rank, 3))
    return watch


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_culprit_is_named_on_every_disk(
    tmp_path: Path, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = ProcessLook(state=ProcessState.UNKNOWN)  # on other hosts, no process is seen
    monkeypatch.setattr("jaxpipe.runtime.watchdog.silence.look_at", lambda *_: elsewhere)
    causes: Queue[Cause] = Queue()
    found, done = Event(), [Event() for _ in CHAIN]

    def work(transport: Transport) -> float:
        folder, begin_s = tmp_path / f"host-{transport.rank}", time.monotonic()

        def end(cause: Cause) -> None:
            if watch.keep_cause(cause):
                causes.put(cause)
            found.set()

        watch = watchdog_of(transport, tmp_path, end, least_s=1.0)
        watch.start()
        if is_stopped and transport.rank == 0:
            watch._stopped.set()  # pyright: ignore[reportPrivateUsage]  its thread beats no more
        assert found.wait(PATIENCE_S)
        while read_cause(folder) is None and (transport.rank or not is_stopped):
            assert time.monotonic() - begin_s < PATIENCE_S
            time.sleep(0.05)
        took_s = time.monotonic() - begin_s
        done[transport.rank].set()
        assert all(each.wait(PATIENCE_S) for each in done)
        watch.stop()
        assert list(read_heartbeats(folder, range(3))) == [transport.rank] * is_stopped * (
            transport.rank == 0
        )
        return took_s

    run_ranks(3, work)
    first = causes.get_nowait()
    assert first.rank == 0
    assert first.kind is (CauseKind.STOPPED if is_stopped else CauseKind.HANG)
    kept = read_cause(tmp_path / "host-2")
    assert kept is not None
    assert (kept.kind, kept.rank) == (first.kind, 0)


def test_a_rank_that_has_ended_in_order_is_forgotten(tmp_path: Path) -> None:
    heard = Barrier(len(CHAIN))

    def work(transport: Transport) -> None:
        watch = watchdog_of(transport, tmp_path, lambda _: None, least_s=60.0)
        watch.start()
        exchange = watch._others.exchange  # pyright: ignore[reportPrivateUsage]
        assert isinstance(exchange, HeartbeatExchange)
        deadline_s = time.monotonic() + PATIENCE_S
        while set(exchange.heartbeats) != set(CHAIN) - {transport.rank}:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        heard.wait(PATIENCE_S)
        watch.stop()
        assert exchange.heartbeats == {}

    run_ranks(3, work)


def test_a_long_cause_is_cut_and_arrives(tmp_path: Path) -> None:
    long = Cause(kind=CauseKind.ERROR, message="ä" * 5000, rank=0)

    def work(transport: Transport) -> None:
        folder = tmp_path / f"host-{transport.rank}"
        exchange = HeartbeatExchange(
            transport, [1 - transport.rank], on_cause=lambda cause: write_cause(folder, cause)
        )
        if transport.rank == 0:
            exchange.tell(long)
        exchange.close()

    run_ranks(2, work)
    kept = read_cause(tmp_path / "host-1")
    assert kept is not None
    assert kept.rank == 0
    assert set(kept.message) == {"ä"}


def test_a_heartbeat_may_name_all_ranks_of_a_large_run() -> None:
    num_ranks, both = 600, Barrier(2)
    waits_for = tuple(range(1, num_ranks))

    def work(transport: Transport) -> tuple[int, ...]:
        if transport.rank > 1:
            return ()
        other = 1 - transport.rank
        exchange = HeartbeatExchange(transport, [other], on_cause=lambda _: None)
        mine = Heartbeat(
            rank=transport.rank, stage=0, step=1, doing="update", waits_for=waits_for,
            overdue=False, beat=1, process=1, host="a" * 64,
        )  # fmt: skip
        exchange.tick(mine, waits=True)
        deadline_s = time.monotonic() + PATIENCE_S
        while other not in exchange.heartbeats and time.monotonic() < deadline_s:
            exchange.tick(mine, waits=False)
            time.sleep(0.01)
        heard = exchange.heartbeats[other].waits_for
        both.wait(PATIENCE_S)  # the last message of a rank takes its heartbeat away
        exchange.close()
        return heard

    assert run_ranks(num_ranks, work)[:2] == [waits_for, waits_for]
