"""Silent connections between hosts carry a byte before the kernel would slow them down."""

from collections.abc import Callable

import pytest

from jaxpipe.comm.mpi.keep_warm import INTERVAL_S, KeepWarm

_LARGE = 1_000_000


class Wire:
    """The bytes that were sent, and whether they leave."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.num_receives = 0
        self.is_free = True

    def send(self, to: int) -> Callable[[], bool]:
        self.sent.append(to)
        return lambda: self.is_free

    def receive(self) -> None:
        self.num_receives += 1


def warm_over(wire: Wire, *, sends: bool = True, remote: tuple[int, ...] = (1, 2)) -> KeepWarm:
    return KeepWarm(wire.send, wire.receive, remote=frozenset(remote), sends=sends)


def tend(warm: KeepWarm, *, begin_s: float, end_s: float) -> None:
    for millisecond in range(round(1e3 * begin_s), round(1e3 * end_s)):
        warm.tend(millisecond / 1e3)


def test_a_connection_is_never_silent_for_the_least_timeout_of_the_kernel():
    wire = Wire()
    warm = warm_over(wire)
    warm.sent(1, num_bytes=_LARGE, now_s=0.0)
    tend(warm, begin_s=0.0, end_s=1.0)
    assert set(wire.sent) == {1}
    assert 1.0 / (INTERVAL_S * 1.5) - 1 <= len(wire.sent) <= 1.0 / INTERVAL_S
    assert wire.num_receives > 0


@pytest.mark.parametrize(
    ("to", "num_bytes", "sends"),
    [(1, 100, True), (1, 0, True), (3, _LARGE, True), (1, _LARGE, False)],
    ids=["short", "empty", "on this host", "kernel keeps the speed"],
)
def test_nothing_is_sent_where_nothing_slows_down(to: int, num_bytes: int, sends: bool):
    wire = Wire()
    warm = warm_over(wire, sends=sends)
    warm.sent(to, num_bytes=num_bytes, now_s=0.0)
    tend(warm, begin_s=0.0, end_s=1.0)
    assert wire.sent == []
    assert wire.num_receives > 0  # what others send must not pile up


def test_ranks_of_one_host_do_nothing_at_all():
    wire = Wire()
    warm = warm_over(wire, remote=())
    warm.sent(1, num_bytes=_LARGE, now_s=0.0)
    tend(warm, begin_s=0.0, end_s=1.0)
    assert (wire.sent, wire.num_receives) == ([], 0)


def test_messages_count_as_well():
    wire = Wire()
    warm = warm_over(wire)
    for millisecond in range(0, 1000, 50):
        warm.sent(1, num_bytes=_LARGE if millisecond == 0 else 1, now_s=millisecond / 1e3)
        tend(warm, begin_s=millisecond / 1e3, end_s=(millisecond + 50) / 1e3)
    assert wire.sent == []


def test_a_byte_that_does_not_leave_is_not_followed_by_another():
    wire = Wire()
    wire.is_free = False
    warm = warm_over(wire)
    warm.sent(2, num_bytes=_LARGE, now_s=0.0)
    tend(warm, begin_s=0.0, end_s=1.0)
    assert wire.sent == [2]
    wire.is_free = True
    tend(warm, begin_s=1.0, end_s=1.2)
    assert wire.sent[:2] == [2, 2]


def test_it_stops_sending_and_still_receives():
    wire = Wire()
    warm = warm_over(wire)
    warm.sent(1, num_bytes=_LARGE, now_s=0.0)
    warm.stop()
    tend(warm, begin_s=0.0, end_s=1.0)
    assert wire.sent == []
    assert wire.num_receives > 0
