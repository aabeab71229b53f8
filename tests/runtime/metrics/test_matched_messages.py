"""Messages meet their receives as queues would pair them, and times are closed forms."""

from collections import defaultdict, deque
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.comm import LoggedTransport, MessageLog, ShapedTransport, Transport, run_ranks
from jaxpipe.comm.message_log import RECEIVED, SENT
from jaxpipe.runtime.metrics.matched_messages import EARLY_S, Matcher, pair_uses
from jaxpipe.trace import PairUse, busy
from tests.comm.test_message_log import like

Queues = defaultdict[tuple[int, int, int], deque[int]]
Row = tuple[int, int, int, int, float]

_CHANNELS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3))


def sends(*rows: tuple[int, int, int, int, float]) -> np.ndarray:
    return np.array(list(rows), SENT)


def receives(*rows: tuple[int, int, int, float, float]) -> np.ndarray:
    return np.array(list(rows), RECEIVED)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), _CHANNELS), max_size=30), st.integers(1, 5))
def test_matches_as_a_queue_for_each_channel(
    events: list[tuple[bool, tuple[int, int, int]]], chunk: int
) -> None:
    waiting: tuple[Queues, Queues] = (defaultdict(deque), defaultdict(deque))
    expected: list[tuple[int, int]] = []
    matcher, found = Matcher(), list[tuple[int, int]]()
    for begin in range(0, len(events), chunk):
        logs: tuple[list[Row], list[Row]] = ([], [])
        for number, (is_send, channel) in enumerate(events[begin : begin + chunk], begin):
            logs[is_send].append((*channel, number, float(number)))
            others = waiting[not is_send][channel]
            if others:
                other = others.popleft()
                expected.append((number, other) if is_send else (other, number))
            else:
                waiting[is_send][channel].append(number)
        # The number of an event stands where a send has its bytes, and a receive its times.
        sent, received = matcher.match(sends(*logs[1]), receives(*logs[0]))
        found += zip(sent["num_bytes"].tolist(), received["over_s"].astype(int), strict=True)
    assert sorted(found) == sorted(expected)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12))
def test_busy_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    begin_s = np.array([begin for begin, _ in spans], float)
    end_s = np.array([begin + length for begin, length in spans], float)
    covered = {second for begin, length in spans for second in range(begin, begin + length)}
    assert busy(begin_s, end_s)[0] == len(covered)


def uses_of(sent: np.ndarray, received: np.ndarray) -> dict[tuple[int, int, str], PairUse]:
    uses = pair_uses(sent, Matcher().match(sent, received))
    return {(use.source, use.to, use.traffic.value if use.traffic else "all"): use for use in uses}


def test_the_seconds_of_a_pair_are_those_of_closed_form() -> None:
    sent = sends(
        (0, 1, 5, 100, 1.0),  # an activation, on its way from 1 to 3
        (0, 1, 2**20, 50, 2.0),  # a gradient from 2 to 4, overlapping it
        (0, 1, 5, 70, 6.0),  # its receive is posted at 7: from 7 to 8
        (0, 1, 9, 30, 10.0),  # posted at 11 and complete at once: it may have come before
        (1, 0, 5, 20, 1.0),  # not arrived
        (0, 1, 11, 9, np.nan),  # over a transport without times
    )
    received = receives(
        (0, 1, 5, 0.0, 3.0),
        (0, 1, 2**20, 0.0, 4.0),
        (0, 1, 5, 7.0, 8.0),
        (0, 1, 9, 11.0, 11.0 + EARLY_S / 2),
    )
    uses = uses_of(sent, received)
    assert set(uses) == {
        (0, 1, "all"),
        (0, 1, "activations"),
        (0, 1, "gradients"),
        (1, 0, "all"),
        (1, 0, "activations"),
    }
    whole, activations = uses[0, 1, "all"], uses[0, 1, "activations"]
    assert (whole.num_messages, whole.num_bytes, whole.timed_bytes) == (5, 259, 220)
    assert (whole.seconds, whole.num_periods) == (3.0 + 1.0, 2)
    assert (activations.num_bytes, activations.timed_bytes) == (209, 170)
    assert activations.seconds == 2.0 + 1.0
    assert (uses[1, 0, "all"].num_bytes, uses[1, 0, "all"].seconds) == (20, 0.0)


def test_a_message_that_arrives_before_it_left_takes_no_time() -> None:
    clock_error = uses_of(sends((0, 1, 5, 8, 2.0)), receives((0, 1, 5, 0.0, 1.9)))
    assert clock_error[0, 1, "all"].seconds == 0.0


@pytest.mark.slow
def test_the_goodput_of_an_emulated_link_is_that_of_its_cluster() -> None:
    ready = Barrier(2)
    cluster, sizes, scale = topo.load("two-region"), [1_000_000, 3_000_000, 2_000_000], 40.0
    bandwidth, latency_s = 1.12e9 / 8 / scale, 11e-3 * scale

    def work(transport: Transport) -> tuple[np.ndarray, np.ndarray]:
        log = MessageLog(rank=transport.rank)
        shaped = ShapedTransport(transport, cluster, devices=(0, 2), scale=scale)
        logged = LoggedTransport(shaped, log)
        incoming = [
            logged.receive(like(size), source=1 - logged.rank, tag=tag)
            for tag, size in enumerate(sizes)
        ]
        ready.wait(10.0)  # as in a run, receives are posted ahead
        outgoing = [
            logged.send(np.zeros(size, np.uint8), to=1 - logged.rank, tag=tag)
            for tag, size in enumerate(sizes)
        ]
        for each in (*incoming, *outgoing):
            each.wait(timeout_s=30.0)
        shaped.close()
        return log.take_sent(), log.take_received()

    logs = run_ranks(2, work)
    uses = uses_of(*(np.concatenate(each) for each in zip(*logs, strict=True)))
    for source in (0, 1):
        use = uses[source, 1 - source, "all"]
        assert use.num_bytes == use.timed_bytes == sum(sizes)
        expected_s = sum(sizes) / bandwidth + use.num_periods * latency_s
        assert use.seconds == pytest.approx(expected_s, rel=0.05)
