"""The kernel's counts of bytes distinguish a slow link, a cut link and a stopped process."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.watchdog import Cause, CauseKind, Deadlines, Heartbeat, Seen, Watchdog
from jaxpipe.runtime.watchdog.connections import (
    Arrivals,
    Connection,
    connection_of,
    connections,
)
from jaxpipe.schedule import Instruction, forward, receive

HEARTBEAT_BYTES, TICK_S, HANG_S = 1100, 0.2, 2.0
SECONDS = 60.0


class FarRank:
    """What rank 1 on this host hears of rank 0 on another one; an `Exchange`."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.heartbeats = {
            0: Heartbeat(
                rank=0, stage=0, step=3, doing="forward 3", waits_for=(), overdue=False,
                beat=1, process=1, host="far",
            )
        }  # fmt: skip

    def beat(self) -> None:
        self.heartbeats = {0: replace(self.heartbeats[0], beat=self.heartbeats[0].beat + 1)}
        self.received_bytes += HEARTBEAT_BYTES

    def tick(self, mine: Heartbeat, *, waits: bool) -> None: ...

    def tell(self, cause: Cause) -> None: ...

    def close(self) -> None: ...


def waited(
    folder: Path,
    *,
    arrives: Callable[[float], int],
    is_answered: bool = True,
    beats: bool = False,
    seconds: float = SECONDS,
) -> list[Cause]:
    """Return the causes that rank 1 finds while it waits for rank 0, of which bytes arrive."""
    far, clock, causes = FarRank(), [0.0], list[Cause]()

    def read() -> Iterator[Connection]:
        num_received = far.received_bytes + arrives(clock[0])
        yield Connection(num_received=num_received, is_answered=is_answered)

    def waits_for(_: Instruction) -> tuple[int, ...]:
        return (0,)

    seen = Seen(rank=1, stage=1, num_ranks=2, folder=folder, waits_for=waits_for)
    watch = Watchdog(
        seen,
        Deadlines(least_s=HANG_S, unlearned_s=HANG_S),
        end=causes.append,
        arrivals=Arrivals(window_s=1.6, margin_bytes=4096, read=read),
    )
    watch._others.exchange = far  # pyright: ignore[reportPrivateUsage]  as `start` does
    (folder / "watch").mkdir(exist_ok=True)
    watch.at(receive(1, 0, 3))
    while clock[0] < seconds and not causes:
        clock[0] += TICK_S
        if beats:
            far.beat()
        watch._tick(TICK_S)  # pyright: ignore[reportPrivateUsage]  the clock is not real
    return causes


@pytest.mark.parametrize("bytes_per_s", [4e3, 2.5e4, 2.5e5, 2.5e6])
def test_a_slow_link_is_named_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bytes_per_s: float
) -> None:
    """Its heartbeats wait behind a message: none arrives for a minute."""
    assert waited(tmp_path, arrives=lambda now_s: int(bytes_per_s * now_s)) == []
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) in (1, 2), "a line now, and one after a minute"
    rate = f"{bytes_per_s / 1e6:.3g} MB/s"
    assert messages[0].startswith("rank 1 has waited 2.")
    assert "for rank 0, whose messages still arrive from far on " in messages[0]
    assert messages[0].endswith(f" at {rate}: the link is slow, training continues")


def test_a_stopped_process_is_named_as_soon_as_before(tmp_path: Path) -> None:
    """Its kernel acknowledges what it does not read."""
    (cause,) = waited(tmp_path, arrives=lambda _: 0, seconds=2.8)
    assert (cause.kind, cause.rank) == (CauseKind.STOPPED, 0)


def test_a_link_that_is_cut_is_named_as_a_link(tmp_path: Path) -> None:
    (cause,) = waited(tmp_path, arrives=lambda _: 0, is_answered=False)
    assert (cause.kind, cause.rank) == (CauseKind.LINK, None)
    assert cause.message.startswith("messages do not arrive between rank 0 on far and rank 1 on ")


def test_a_link_that_is_cut_while_it_is_slow_is_found_then(tmp_path: Path) -> None:
    (cause,) = waited(
        tmp_path, arrives=lambda now_s: int(2.5e5 * min(now_s, 20.0)), is_answered=False
    )
    assert cause.kind is CauseKind.LINK


@given(rate=st.floats(0, 30e3), beats=st.booleans())
def test_heartbeats_are_no_messages(rate: float, beats: bool) -> None:
    """Bytes beside heartbeats count as messages above the margin, whatever the heartbeats are."""
    heartbeats = [0]
    now_s = 0.0

    def read() -> Iterator[Connection]:
        yield Connection(num_received=int(rate * now_s) + heartbeats[0])

    arrivals = Arrivals(window_s=1.6, margin_bytes=4096, read=read)
    for _ in range(20):
        now_s += TICK_S
        heartbeats[0] += HEARTBEAT_BYTES * beats
        arrivals.update(now_s, heartbeat_bytes=heartbeats[0])
    assert (arrivals.num_bytes > 0) == (arrivals.num_bytes > 4096)
    if abs(rate * 1.6 - 4096) > rate * 0.3 + 2:
        assert (arrivals.num_bytes > 0) == (rate * 1.6 > 4096)
    if arrivals.num_bytes:
        assert arrivals.bytes_per_s == pytest.approx(rate, rel=0.01, abs=2)
    arrivals.clear()
    assert arrivals.num_bytes == 0


def test_the_kernel_is_understood() -> None:
    """Counted by this kernel: a connection of this host to itself is left out."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as sender,
        closing(server.accept()[0]) as receiver,
    ):
        sender.sendall(bytes(5000))
        receiver.recv(5000, socket.MSG_WAITALL)
        facts = receiver.getsockopt(socket.IPPROTO_TCP, 11, 136)
        assert connection_of(facts) == Connection(num_received=5000)
        assert all(connection.num_received != 5000 for connection in connections())
    unanswered = bytearray(facts)
    unanswered[2] = 3
    struct.pack_into("=I", unanswered, 24, 7)
    assert connection_of(bytes(unanswered)) == Connection(num_received=5000, is_answered=False)
    unanswered[0] = 8  # close-wait
    assert connection_of(bytes(unanswered)) is None


def test_a_rank_that_works_has_no_link_to_blame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes arrive in an instruction of its own, for instance a part of an all-reduce: no word."""
    now_s, causes = [0.0], list[Cause]()

    def read() -> Iterator[Connection]:
        yield Connection(num_received=int(1e6 * now_s[0]))

    seen = Seen(rank=1, stage=1, num_ranks=2, folder=tmp_path, waits_for=lambda _: ())
    watch = Watchdog(
        seen,
        Deadlines(least_s=HANG_S, unlearned_s=HANG_S),
        end=causes.append,
        arrivals=Arrivals(window_s=1.6, margin_bytes=4096, read=read),
    )
    (tmp_path / "watch").mkdir()
    watch.at(forward(1, 3))
    for _ in range(30):
        now_s[0] += TICK_S
        watch._tick(TICK_S)  # pyright: ignore[reportPrivateUsage]  the clock is not real
    assert not causes
    assert not caplog.records
    for _ in range(30):
        watch._tick(TICK_S)  # pyright: ignore[reportPrivateUsage]  the clock is not real
    assert [cause.kind for cause in causes[:1]] == [CauseKind.HANG]
