"""Launches meet in order, by one thread; errors are translated, deadlines kept, ends are clean."""

import logging
import threading
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import Transport, all_reduce, run_ranks
from jaxpipe.comm.local import LocalTransport
from jaxpipe.comm.nccl import NcclTransport
from jaxpipe.comm.tags import ALL_REDUCE_TAG
from jaxpipe.errors import DeadlineError, TransportError
from tests.comm.nccl.fake import FakeBinding, World, run_with_fake_nccl


def like(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), np.dtype(np.float32))


def exchange(transport: Transport) -> None:
    """Send to each other with tags in opposite orders, of different sizes."""
    other, tags = 1 - transport.rank, (0, 1, 2, 3)
    receivings = {
        tag: transport.receive(like(10 + tag), source=other, tag=tag)
        for tag in (tags if transport.rank else reversed(tags))
    }
    sendings = [
        transport.send(jnp.full(10 + tag, tag, jnp.float32), to=other, tag=tag)
        for tag in (reversed(tags) if transport.rank else tags)
    ]
    for tag, receiving in receivings.items():
        got = receiving.wait(timeout_s=20.0)
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, np.full(10 + tag, tag, np.float32))
    for sending in sendings:
        sending.wait(timeout_s=20.0)


def test_both_ends_of_a_channel_launch_in_the_same_order():
    world = World()
    run_with_fake_nccl(2, exchange, world=world)
    assert len(world.wires) == 2
    for unique_id in world.wires:
        ends = {
            kind: [size for k, name, size in world.launches if (k, name) == (kind, unique_id)]
            for kind in ("send", "receive")
        }
        assert ends["send"] == ends["receive"]
        assert sorted(ends["send"]) == [1, 40, 44, 48, 52]  # the trial and the four messages
        assert world.closed.count(unique_id) == 2
    assert world.aborted == []


def test_a_receive_is_in_place():
    buffers: list[int] = []

    def work(transport: Transport) -> None:
        receiving = transport.receive(like(1_000), source=1 - transport.rank, tag=0)
        transport.send(jnp.ones(1_000, jnp.float32), to=1 - transport.rank, tag=0)
        got = receiving.wait(timeout_s=20.0)
        assert isinstance(got, jax.Array)
        buffers.append(got.unsafe_buffer_pointer())

    world = World()
    run_with_fake_nccl(2, work, world=world)
    into = {wire.receives[1].unsafe_buffer_pointer() for wire in world.wires.values()}
    assert set(buffers) == into


def test_only_the_pipelines_messages_between_the_pairs_go_over_nccl():
    def work(transport: Transport) -> None:
        for other in {0, 1, 2} - {transport.rank}:
            for tag in (0, ALL_REDUCE_TAG):
                transport.send(jnp.ones(5, jnp.float32), to=other, tag=tag)
        for other in {0, 1, 2} - {transport.rank}:
            for tag in (0, ALL_REDUCE_TAG):
                got = transport.receive(like(5), source=other, tag=tag).wait(timeout_s=20.0)
                is_nccl = tag == 0 and {transport.rank, other} == {0, 2}
                assert isinstance(got, jax.Array) == is_nccl

    world = World()
    run_with_fake_nccl(3, work, world=world, pairs=((2, 0),))
    assert len(world.wires) == 2
    assert len(world.launches) == 8


def test_an_error_of_nccl_ends_all_waits_and_the_job():
    def work(transport: Transport) -> None:
        other = 1 - transport.rank
        if transport.rank == 0:
            sending = transport.send(jnp.ones(7, jnp.float32), to=other, tag=3)
            with pytest.raises(TransportError, match=words):
                sending.wait(timeout_s=20.0)
            later = transport.send(jnp.ones(1, jnp.float32), to=other, tag=4)
            later.wait(timeout_s=20.0)
        transport.receive(like(7), source=other, tag=3).wait(timeout_s=20.0)

    world = World(fails=lambda kind, array: kind == "send" and array.nbytes == 28)
    words = (
        "cannot send 28 bytes from rank 0 to rank 1 with tag 3 with NCCL: the send of 28 bytes was"
    )
    with pytest.raises(TransportError, match=words):
        run_with_fake_nccl(2, work, world=world)
    assert len(world.aborted) >= 2
    assert world.closed == []


def test_a_communicator_that_cannot_be_made_is_told():
    class Refusing(FakeBinding):
        def unique_id(self) -> bytes:
            raise OSError("no such device")

    def work(transport: Transport) -> None:
        NcclTransport(transport, Refusing(World()), timeout_s=1.0)

    with pytest.raises(TransportError, match="cannot connect rank 0 to rank 1 with NCCL: no such"):
        run_ranks(2, work)


def test_a_rank_that_stays_away_from_the_start_is_waited_for_in_vain():
    def work(transport: Transport) -> None:
        if transport.rank == 1:
            NcclTransport(transport, FakeBinding(World()), timeout_s=0.1)

    with pytest.raises(DeadlineError, match="waiting for 128 bytes from rank 0 to rank 1"):
        run_ranks(2, work)


def test_what_the_gpu_never_ends_is_late():
    world = World()
    both = threading.Barrier(2)

    def work(transport: Transport) -> None:
        both.wait(timeout=20.0)  # the other's NCCL would not begin while operations hang
        world.hangs = True
        sending = transport.send(jnp.ones(3, jnp.float32), to=1 - transport.rank, tag=0)
        receiving = transport.receive(like(3), source=1 - transport.rank, tag=0)
        for waiting in (sending, receiving):
            with pytest.raises(
                DeadlineError, match=r"timed out after 0\.1 s waiting for 12 bytes from rank"
            ):
                waiting.wait(timeout_s=0.1)
        both.wait(timeout=20.0)
        world.hangs = False
        assert receiving.wait(timeout_s=20.0)[0] == 1
        sending.wait(timeout_s=20.0)

    run_with_fake_nccl(2, work, world=world)


def test_a_receive_too_many_is_warned_about(caplog: pytest.LogCaptureFixture):
    def work(transport: Transport) -> None:
        if transport.rank == 1:
            transport.receive(like(3), source=0, tag=9)

    with caplog.at_level(logging.WARNING):
        run_with_fake_nccl(2, work)
    assert "rank 1 never received 12 bytes from rank 0 to rank 1 with tag 9" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nccl ")]


def test_the_all_reduce_of_a_library_is_that_of_the_other_transport():
    def library_sum(
        transport: Transport, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
    ) -> np.ndarray:
        array[...] = all_reduce(transport, array, members, tag=ALL_REDUCE_TAG, timeout_s=timeout_s)
        return array

    def work(transport: Transport) -> np.ndarray:
        mine = np.full(3, 1.0 + transport.rank)
        return all_reduce(
            transport, mine, (0, 1), tag=0, timeout_s=20.0, algorithm=AllReduceKind.LIBRARY
        )

    with patch.object(LocalTransport, "native_all_reduce", library_sum, create=True):
        totals = run_with_fake_nccl(2, work)
    assert [np.asarray(total).tolist() for total in totals] == [[3.0] * 3] * 2
