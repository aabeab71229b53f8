"""The offset of a skewed clock, with time that passes only when somebody reads it."""

import threading
from collections.abc import Callable

import pytest

from jaxpipe.comm import Transport, clock_offset, run_ranks


class SharedTime:
    """One time for all ranks, one unit further at each reading; each rank's clock is skewed."""

    def __init__(self):
        self._lock = threading.Lock()
        self._now = 0.0

    def clock(self, *, skew: float) -> Callable[[], float]:
        def read() -> float:
            with self._lock:
                self._now += 1.0
                return self._now + skew

        return read


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_finds_the_skew(num_ranks: int):
    time = SharedTime()
    skews = [3.0, 128.0, -7.0, 0.5][:num_ranks]

    def work(transport: Transport) -> float:
        clock = time.clock(skew=skews[transport.rank])
        return clock_offset(transport, rounds=num_ranks + 1, timeout_s=10.0, clock=clock)

    assert run_ranks(num_ranks, work) == [skews[0] - skew for skew in skews]


def test_needs_a_round():
    with pytest.raises(AssertionError):
        run_ranks(
            1, lambda transport: clock_offset(transport, rounds=0, timeout_s=1.0, clock=float)
        )
