"""What every transport must do: each check runs on all ranks at once, over each transport."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.collective.codec.aligned import ALIGNMENT_BYTES
from jaxpipe.comm.clock_sync import clock_offset
from jaxpipe.comm.collective.gather_broadcast import barrier, broadcast_bytes, gather_bytes
from jaxpipe.comm.message_timing import timing_of
from jaxpipe.comm.tags import BARRIER_TAG, BROADCAST_TAG, GATHER_TAG, MAX_TAG
from jaxpipe.comm.transport import HostOrDeviceArray, Transport
from jaxpipe.errors import DeadlineError, TransportError

TIMEOUT_S = 30.0
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "int32", "uint8", "bool")
NUM_BYTES = (0, 1, 63, 4_000, 8 * 2**10, 2**20 + 1, 16 * 2**20 + 1)


def like(array: HostOrDeviceArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def after(transport: Transport) -> int:
    return (transport.rank + 1) % transport.num_ranks


def before(transport: Transport) -> int:
    return (transport.rank - 1) % transport.num_ranks


def pass_on(transport: Transport, mine: HostOrDeviceArray, theirs: HostOrDeviceArray) -> None:
    """Send `mine` to the next rank, and expect `theirs` from the one before: head to head."""
    sending = transport.send(mine, to=after(transport), tag=0)
    receiving = transport.receive(like(theirs), source=before(transport), tag=0)
    got = receiving.wait(timeout_s=TIMEOUT_S)
    sending.wait(timeout_s=TIMEOUT_S)
    assert got.dtype == theirs.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(theirs), strict=True)


def messages_of_one_tag_keep_their_order(transport: Transport) -> None:
    one = jax.ShapeDtypeStruct((1,), np.dtype(np.int32))
    sendings = [
        transport.send(np.full(1, n, np.int32), to=after(transport), tag=5) for n in range(20)
    ]
    receivings = [transport.receive(one, source=before(transport), tag=5) for _ in range(20)]
    got = [int(receiving.wait(timeout_s=TIMEOUT_S)[0]) for receiving in reversed(receivings)]
    assert got == list(reversed(range(20)))
    for sending in sendings:
        sending.wait(timeout_s=TIMEOUT_S)


def times_of_a_message_follow_each_other(transport: Transport) -> None:
    mine = np.ones(100_000, np.uint8)
    begin_s = time.perf_counter()
    receiving = transport.receive(like(mine), source=before(transport), tag=0)
    sending = transport.send(mine, to=after(transport), tag=0)
    receiving.wait(timeout_s=TIMEOUT_S)
    sending.wait(timeout_s=TIMEOUT_S)
    end_s = time.perf_counter()
    for handle in (sending, receiving):
        if (timing := timing_of(handle)) is not None:  # else the transport keeps no times
            assert begin_s <= timing.started_s <= timing.over_s <= end_s


def messages_of_other_tags_overtake(transport: Transport) -> None:
    values = {tag: np.full(4_000, tag, np.int64) for tag in (3, 0, MAX_TAG)}
    sendings = [
        transport.send(value, to=after(transport), tag=tag) for tag, value in values.items()
    ]
    for tag, value in reversed(values.items()):
        receiving = transport.receive(like(value), source=before(transport), tag=tag)
        np.testing.assert_array_equal(receiving.wait(timeout_s=TIMEOUT_S), value)
    for sending in sendings:
        sending.wait(timeout_s=TIMEOUT_S)


def messages_of_any_size_pass_head_to_head(transport: Transport) -> None:
    for num_bytes in NUM_BYTES:
        content = np.arange(num_bytes, dtype=np.uint8)
        pass_on(
            transport, content + np.uint8(transport.rank), content + np.uint8(before(transport))
        )


def arrays_of_any_dtype_and_shape_pass(transport: Transport) -> None:
    for dtype in DTYPES:
        for shape in ((), (3,), (0, 2), (2, 3, 5)):
            numpy_array = np.ones(shape, jnp.dtype(dtype))
            pass_on(transport, numpy_array, numpy_array)
            if dtype != "float64":
                pass_on(transport, jnp.ones(shape, dtype), numpy_array)


def arrays_that_are_not_contiguous_pass(transport: Transport) -> None:
    columns = np.arange(12).reshape(3, 4)[:, ::2]
    pass_on(transport, columns, columns)


def a_rank_sends_to_itself(transport: Transport) -> None:
    for num_bytes in NUM_BYTES:
        content = np.arange(num_bytes, dtype=np.uint8)
        receiving = transport.receive(like(content), source=transport.rank, tag=1)
        sending = transport.send(content, to=transport.rank, tag=1)
        np.testing.assert_array_equal(receiving.wait(timeout_s=TIMEOUT_S), content)
        sending.wait(timeout_s=TIMEOUT_S)


def receives_may_be_posted_early_or_late(transport: Transport) -> None:
    for num_bytes in NUM_BYTES:
        content = np.arange(num_bytes, dtype=np.uint8)
        early = transport.receive(like(content), source=before(transport), tag=1)
        barrier(transport, tag=BARRIER_TAG, timeout_s=TIMEOUT_S)
        sendings = [transport.send(content, to=after(transport), tag=tag) for tag in (1, 2)]
        barrier(transport, tag=BARRIER_TAG, timeout_s=TIMEOUT_S)
        late = transport.receive(like(content), source=before(transport), tag=2)
        for receiving in (late, early):
            np.testing.assert_array_equal(receiving.wait(timeout_s=TIMEOUT_S), content)
        for sending in sendings:
            sending.wait(timeout_s=TIMEOUT_S)


def many_messages_are_under_way_at_once(transport: Transport) -> None:
    content = np.arange(10_000, dtype=np.float32)
    others = [rank for rank in range(transport.num_ranks) if rank != transport.rank]
    receivings = {
        (rank, tag): transport.receive(like(content), source=rank, tag=tag)
        for rank in others
        for tag in range(16)
    }
    sendings = [
        transport.send(content + tag + transport.rank, to=rank, tag=tag)
        for rank in others
        for tag in range(16)
    ]
    for (rank, tag), receiving in reversed(receivings.items()):
        got = receiving.wait(timeout_s=TIMEOUT_S)
        np.testing.assert_array_equal(got, content + tag + rank)
    for sending in sendings:
        sending.wait(timeout_s=TIMEOUT_S)


def jax_takes_what_arrives_without_a_copy(transport: Transport) -> None:
    content = jnp.arange(10_007, dtype=jnp.float32)
    receiving = transport.receive(like(content), source=before(transport), tag=0)
    sending = transport.send(content, to=after(transport), tag=0)
    got = receiving.wait(timeout_s=TIMEOUT_S)
    sending.wait(timeout_s=TIMEOUT_S)
    assert isinstance(got, np.ndarray)
    assert got.flags.writeable
    assert got.ctypes.data % ALIGNMENT_BYTES == 0
    on_device = jax.device_put(got)
    assert on_device.unsafe_buffer_pointer() == got.ctypes.data
    np.testing.assert_array_equal(on_device, content)


def arrays_may_be_sent_before_they_are_computed(transport: Transport) -> None:
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: jnp.tanh(y @ y), x))
    computed = slow(jnp.eye(200))
    first = transport.receive(like(computed), source=before(transport), tag=0)
    second = transport.receive(like(computed), source=before(transport), tag=0)
    sendings = [
        transport.send(array, to=after(transport), tag=0)
        for array in (computed, np.zeros((200, 200), np.float32))
    ]
    np.testing.assert_array_equal(first.wait(timeout_s=TIMEOUT_S), computed)
    assert not np.any(second.wait(timeout_s=TIMEOUT_S))
    for sending in sendings:
        sending.wait(timeout_s=TIMEOUT_S)


def a_wait_ends_at_its_deadline_and_may_be_repeated(transport: Transport) -> None:
    content = np.arange(4, dtype=np.int32)
    receiving = transport.receive(like(content), source=before(transport), tag=9)
    start_s = time.monotonic()
    words = f"16 bytes from rank {before(transport)} to rank {transport.rank} with tag 9"
    with pytest.raises(DeadlineError, match=rf"timed out after \d\.\d s waiting for {words}"):
        receiving.wait(timeout_s=0.2)
    assert 0.2 <= time.monotonic() - start_s < 2.0
    barrier(transport, tag=BARRIER_TAG, timeout_s=TIMEOUT_S)
    transport.send(content, to=after(transport), tag=9).wait(timeout_s=TIMEOUT_S)
    np.testing.assert_array_equal(receiving.wait(timeout_s=TIMEOUT_S), content)


def a_message_of_another_size_is_an_error(transport: Transport) -> None:
    for num_sent, num_expected in ((2, 3), (3, 2)):
        expected = jax.ShapeDtypeStruct((num_expected,), np.dtype(np.float32))
        receiving = transport.receive(expected, source=before(transport), tag=0)
        barrier(transport, tag=BARRIER_TAG, timeout_s=TIMEOUT_S)
        sending = transport.send(np.zeros(num_sent, np.float32), to=after(transport), tag=0)
        with pytest.raises(TransportError, match=f"instead of {4 * num_expected} bytes from rank"):
            receiving.wait(timeout_s=TIMEOUT_S)
        sending.wait(timeout_s=TIMEOUT_S)


def gather_brings_all_payloads_to_the_root(transport: Transport) -> None:
    payloads = tuple(bytes([rank]) * (1_000 * rank) for rank in range(transport.num_ranks))
    for root in range(transport.num_ranks):
        mine = payloads[transport.rank]
        got = gather_bytes(transport, mine, root=root, tag=GATHER_TAG, timeout_s=TIMEOUT_S)
        assert got == (payloads if transport.rank == root else None)


def broadcast_brings_the_payload_to_all(transport: Transport) -> None:
    for root in range(transport.num_ranks):
        for payload in (b"", b"x", b"plan" * 10_000):
            mine = payload if transport.rank == root else None
            got = broadcast_bytes(
                transport, mine, root=root, tag=BROADCAST_TAG, timeout_s=TIMEOUT_S
            )
            assert got == payload


def nobody_leaves_a_barrier_before_the_last_has_come(transport: Transport) -> None:
    for last in range(transport.num_ranks):
        if transport.rank == last:
            time.sleep(0.05)
        come_s = time.time()
        barrier(transport, tag=BARRIER_TAG, timeout_s=TIMEOUT_S)
        left_s = time.time()
        times = gather_bytes(
            transport,
            np.array([come_s, left_s]).tobytes(),
            root=0,
            tag=GATHER_TAG,
            timeout_s=TIMEOUT_S,
        )
        if times is not None:
            come, left = np.array([np.frombuffer(pair) for pair in times]).T
            assert come.max() <= left.min()


def clocks_of_one_machine_agree(transport: Transport) -> None:
    offset_s = clock_offset(transport, rounds=10, timeout_s=TIMEOUT_S, clock=time.time)
    assert abs(offset_s) < 0.01, offset_s


MESSAGE_CHECKS = (
    messages_of_one_tag_keep_their_order,
    times_of_a_message_follow_each_other,
    messages_of_other_tags_overtake,
    messages_of_any_size_pass_head_to_head,
    arrays_of_any_dtype_and_shape_pass,
    arrays_that_are_not_contiguous_pass,
    a_rank_sends_to_itself,
    receives_may_be_posted_early_or_late,
    many_messages_are_under_way_at_once,
    jax_takes_what_arrives_without_a_copy,
    arrays_may_be_sent_before_they_are_computed,
    a_wait_ends_at_its_deadline_and_may_be_repeated,
    a_message_of_another_size_is_an_error,
    gather_brings_all_payloads_to_the_root,
    broadcast_brings_the_payload_to_all,
    nobody_leaves_a_barrier_before_the_last_has_come,
    clocks_of_one_machine_agree,
)
