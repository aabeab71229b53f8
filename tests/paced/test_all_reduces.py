"""The runtime's all-reduces in a paced rank run side by side, as in a real one."""

import time
from typing import cast
from unittest.mock import Mock

import numpy as np

from jaxpipe.comm import AllReduceHandle, Transport, run_ranks
from jaxpipe.paced.all_reduces import RuntimeAllReduces
from jaxpipe.paced.paced_transport import PacedTransport
from jaxpipe.paced.virtual_clock import TimeBase, VirtualClock

TIMEOUT_S = 10.0


def test_an_all_reduce_does_not_wait_for_one_that_began_before_it():
    def work(transport: Transport) -> list[float]:
        pace = VirtualClock()
        pace.start(TimeBase(origin_s=time.perf_counter(), stretch=1.0))
        reducer = RuntimeAllReduces(transport, cast("PacedTransport", Mock()), pace)
        # Rank 1 begins the first of rank 0 only when it has the sum of the second.
        tags = (0, 1) if transport.rank == 0 else (1, 0)
        handles: dict[int, AllReduceHandle[np.ndarray]] = {}
        for tag in tags:
            handles[tag] = reducer.begin(np.ones(1), (0, 1), tag=tag, timeout_s=TIMEOUT_S)
            if transport.rank == 1:
                handles[tag].wait(timeout_s=TIMEOUT_S)
        sums = [float(handles[tag].wait(timeout_s=TIMEOUT_S)[0]) for tag in (0, 1)]
        reducer.close(timeout_s=TIMEOUT_S)
        return sums

    assert run_ranks(2, work) == [[2.0, 2.0]] * 2
