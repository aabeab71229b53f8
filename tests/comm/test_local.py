"""One rank's error ends the others, and is the one that is raised."""

import threading
import time

import jax
import numpy as np
import pytest

from jaxpipe.comm import LocalWorld, Transport, run_ranks
from jaxpipe.errors import TransportError

ONE = jax.ShapeDtypeStruct((1,), np.dtype(np.int32))


def test_the_first_error_ends_every_wait_and_is_raised():
    told: list[str] = []

    def work(transport: Transport) -> None:
        if transport.rank == 1:
            raise ValueError("stage 1 is too big")
        with pytest.raises(TransportError) as caught:
            transport.receive(ONE, source=1, tag=0).wait(timeout_s=60.0)
        told.append(str(caught.value))
        raise caught.value

    start_s = time.monotonic()
    with pytest.raises(ValueError, match="stage 1 is too big"):
        run_ranks(3, work)
    assert time.monotonic() - start_s < 5.0
    assert (
        told == ["cannot continue: the run was ended by rank 1: ValueError: stage 1 is too big"] * 2
    )
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_the_first_of_several_errors_is_named():
    world = LocalWorld(2)
    world.transport(1).close(error=ValueError("first"))
    world.transport(0).close(error=KeyError("second"))
    sending = world.transport(0).send(np.zeros(1), to=1, tag=0)
    with pytest.raises(TransportError, match="ended by rank 1: ValueError: first"):
        sending.wait(timeout_s=1.0)


def test_results_stand_in_the_order_of_the_ranks():
    def work(transport: Transport) -> int:
        time.sleep(0.01 * (transport.num_ranks - transport.rank))
        return transport.rank

    assert run_ranks(4, work) == [0, 1, 2, 3]


def test_the_array_may_be_changed_once_it_is_sent():
    transport = LocalWorld(1).transport(0)
    array = np.zeros(1, np.int32)
    transport.send(array, to=0, tag=0).wait(timeout_s=1.0)
    array[0] = 1
    assert transport.receive(ONE, source=0, tag=0).wait(timeout_s=1.0)[0] == 0
