"""The log has each message once, in the order of its channel, and holds on to no array."""

import gc
import time
import weakref

import jax
import numpy as np

from jaxpipe.comm import LocalWorld, LoggedTransport, MessageLog
from jaxpipe.comm.message_timing import Times


def like(num_bytes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_bytes,), np.dtype(np.uint8))


def logged(world: LocalWorld, rank: int) -> tuple[LoggedTransport, MessageLog]:
    log = MessageLog(rank=rank)
    return LoggedTransport(world.transport(rank), log), log


def test_has_each_message_once_with_its_times() -> None:
    world = LocalWorld(2)
    (sender, of_sender), (receiver, of_receiver) = logged(world, 0), logged(world, 1)
    receiving = receiver.receive(like(5), source=0, tag=3)
    begin_s = time.perf_counter()
    sender.send(np.zeros(5, np.uint8), to=1, tag=3)
    receiving.wait(timeout_s=1.0)
    [sent], [received] = of_sender.take_sent(), of_receiver.take_received()
    assert sent[["source", "to", "tag", "num_bytes"]].item() == (0, 1, 3, 5)
    assert received[["source", "to", "tag"]].item() == (0, 1, 3)
    assert received["posted_s"] <= begin_s <= sent["started_s"] <= received["over_s"]
    assert not of_sender.take_sent().size
    assert not of_receiver.take_received().size


def test_what_has_not_arrived_stays_and_keeps_the_order_of_its_channel() -> None:
    log = MessageLog(rank=1)
    late, later, other = Times(), Times(2.0, 3.0), Times(4.0, 5.0)
    log.received.extend([(0, 7, 0, late), (0, 7, 0, later), (0, 8, 0, other)])
    assert log.take_received()["over_s"].tolist() == [5.0]
    late.started_s, late.over_s = 1.0, 6.0
    assert log.take_received()["over_s"].tolist() == [6.0, 3.0]


def test_sends_without_times_are_logged_as_such() -> None:
    log = MessageLog(rank=0)
    log.sent.append((1, 2, 30, None))
    [sent] = log.take_sent()
    assert sent["num_bytes"] == 30
    assert np.isnan(sent["started_s"])


def test_holds_on_to_no_array() -> None:
    world = LocalWorld(1)
    transport, log = logged(world, 0)
    array = np.zeros(1000, np.uint8)
    gone = weakref.ref(array)
    transport.send(array, to=0, tag=0)
    received = transport.receive(like(1000), source=0, tag=0).wait(timeout_s=1.0)
    received_gone = weakref.ref(received)
    del array, received
    gc.collect()
    assert gone() is None
    assert received_gone() is None
    assert len(log.sent) == len(log.received) == 1
