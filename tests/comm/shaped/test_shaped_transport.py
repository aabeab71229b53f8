"""Messages over emulated links arrive when those links would have delivered them, never sooner.

How late they may be is asserted generously: machines are busy.
"""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.comm import LocalWorld, ShapedTransport, Transport, run_ranks
from jaxpipe.comm.collective.native import native_of
from jaxpipe.comm.message_timing import timing_of
from jaxpipe.errors import DeadlineError, TransportError

CLUSTER = topo.load("two-region")
LATENCY_S, BYTES_PER_S = 11e-3, 1.12e9 / 8
LATE_S = 2.0


@dataclass(frozen=True, slots=True)
class Times:
    """When the first message was posted, and when each had left and had come."""

    posted_s: float
    left_s: list[float]
    come_s: list[float]


def like(num_bytes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_bytes,), np.dtype(np.uint8))


def send_in_turn(transport: Transport, sizes: list[int], *, scale: float) -> Times:
    """Send messages from rank 0 in Ohio to rank 1 in Virginia, all at once, each with its tag."""
    shaped = ShapedTransport(transport, CLUSTER, devices=(0, 2), scale=scale)
    left_s, come_s = [], []
    posted_s = time.perf_counter()
    if shaped.rank == 0:
        sendings = [
            shaped.send(np.full(size, tag, np.uint8), to=1, tag=tag)
            for tag, size in enumerate(sizes)
        ]
        left_s = [sending.wait(timeout_s=30.0) for sending in sendings]
        assert time.perf_counter() >= left_s[-1]
    else:
        receivings = [
            shaped.receive(like(size), source=0, tag=tag) for tag, size in enumerate(sizes)
        ]
        for tag, (size, receiving) in enumerate(zip(sizes, receivings, strict=True)):
            np.testing.assert_array_equal(
                receiving.wait(timeout_s=30.0), np.full(size, tag, np.uint8)
            )
            come_s.append(time.perf_counter())
    shaped.close()
    return Times(posted_s, left_s, come_s)


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("sizes", [[0], [1], [2_000_000], [1_000_000, 0, 500_001]])
def test_arrives_as_alpha_beta_says(sizes: list[int], scale: float) -> None:
    sender, receiver = run_ranks(2, lambda rank: send_in_turn(rank, sizes, scale=scale))
    for number in range(len(sizes)):
        wire_s = scale * sum(sizes[: number + 1]) / BYTES_PER_S
        left_s = sender.left_s[number] - sender.posted_s
        come_s = receiver.come_s[number] - sender.posted_s
        assert wire_s <= left_s < wire_s + LATE_S
        assert wire_s + scale * LATENCY_S <= come_s < wire_s + scale * LATENCY_S + LATE_S


def test_an_array_occupies_its_link_from_when_it_is_computed() -> None:
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y), x))
    slow(jnp.eye(300)).block_until_ready()

    def work(transport: Transport) -> tuple[float, float]:
        shaped = ShapedTransport(transport, CLUSTER, devices=(0, 2))
        if shaped.rank == 1:
            computed = jax.ShapeDtypeStruct((300, 300), np.dtype(np.float32))
            shaped.receive(computed, source=0, tag=0).wait(timeout_s=60.0)
            come_s = time.perf_counter()
            shaped.close()
            return come_s, come_s
        array = slow(jnp.eye(300))
        sending = shaped.send(array, to=1, tag=0)
        posted_s = time.perf_counter()
        array.block_until_ready()
        computed_s = time.perf_counter()
        sending.wait(timeout_s=60.0)
        shaped.close()
        # By the link: `wait` returns a later time where the payload's own send is seen late.
        timing = timing_of(sending)
        assert timing is not None
        assert timing.over_s >= posted_s + 4 * 300**2 / BYTES_PER_S
        return computed_s, timing.over_s

    (computed_s, left_s), (come_s, _) = run_ranks(2, work)
    assert come_s >= left_s + LATENCY_S
    assert come_s < computed_s + LATE_S


def test_a_late_message_is_named_and_may_be_waited_for_again() -> None:
    def work(transport: Transport) -> None:
        shaped = ShapedTransport(transport, CLUSTER, devices=(0, 2), scale=200.0)
        other = 1 - shaped.rank
        receiving = shaped.receive(like(7), source=other, tag=3)
        sending = shaped.send(np.arange(7, dtype=np.uint8), to=other, tag=3)
        words = (
            rf"timed out after \d\.\d s waiting for 7 bytes from rank {other} to rank {shaped.rank}"
        )
        with pytest.raises(DeadlineError, match=words):
            receiving.wait(timeout_s=0.05)
        assert receiving.wait(timeout_s=30.0)[6] == 6
        sending.wait(timeout_s=30.0)
        shaped.close()

    run_ranks(2, work)


def test_a_link_that_is_busy_at_the_end_delivers_before_it_closes() -> None:
    def work(transport: Transport) -> None:
        shaped = ShapedTransport(transport, CLUSTER, devices=(0, 2))
        if shaped.rank == 0:
            shaped.send(np.ones(1_000_000, np.uint8), to=1, tag=0)
            shaped.close()
        else:
            assert shaped.receive(like(1_000_000), source=0, tag=0).wait(timeout_s=30.0).all()
            shaped.close()

    run_ranks(2, work)


def test_an_error_ends_waits_without_waiting_for_links() -> None:
    world = LocalWorld(2)
    mine, theirs = (
        ShapedTransport(world.transport(rank), CLUSTER, devices=(0, 2), scale=20.0)
        for rank in range(2)
    )
    sending = mine.send(np.ones(1, np.uint8), to=1, tag=0)
    receiving = theirs.receive(like(1), source=0, tag=0)
    theirs.close(error=ValueError("stage 1 is too big"))
    for waiting in (receiving, sending):
        with pytest.raises(TransportError, match="ended by rank 1: ValueError: stage 1 is too"):
            waiting.wait(timeout_s=30.0)
    mine.close(error=KeyError("later"))


def test_no_library_goes_around_the_links() -> None:
    shaped = ShapedTransport(LocalWorld(1).transport(0), CLUSTER, devices=(0,))
    assert native_of(shaped) is None
    shaped.close()
