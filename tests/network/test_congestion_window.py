"""The congestion window against closed forms of slow start and of restarts after idle times."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.network.congestion_window import MIN_TIMEOUT_S, CongestionWindow

RTT_S, BYTES_PER_S = 0.25, 8e6
FULL = RTT_S * BYTES_PER_S
TIMEOUT_S = RTT_S + MIN_TIMEOUT_S
SIZES = st.floats(1.0, 2e7)


def window(
    restart_bytes: float, *, largest_bytes: float = inf, buffer_bytes: float = inf
) -> CongestionWindow:
    return CongestionWindow(
        restart_bytes=restart_bytes,
        rtt_s=RTT_S,
        bytes_per_s=BYTES_PER_S,
        largest_bytes=largest_bytes,
        buffer_bytes=buffer_bytes,
    )


def slow_start_s(num_bytes: float, *, first: float) -> float:
    """Rounds of `first`, twice, four times ... as many bytes; the last at the rate of the link."""
    rounds, sent = 0, 0.0
    while first * 2**rounds < FULL and sent + first * 2**rounds < num_bytes:
        sent += first * 2**rounds
        rounds += 1
    return rounds * RTT_S + (num_bytes - sent) / BYTES_PER_S


@given(SIZES, st.floats(1e3, 4e6))
def test_a_message_after_a_long_silence_starts_slowly(num_bytes: float, first: float):
    expected = slow_start_s(num_bytes, first=min(first, FULL))
    assert window(first).send(3.0, num_bytes) - 3.0 == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(0.0, 2.0), SIZES), min_size=1, max_size=8))
def test_messages_never_leave_faster_than_the_link_nor_in_another_order(
    messages: list[tuple[float, float]],
):
    connection, now_s = window(14_480), 0.0
    for pause_s, num_bytes in messages:
        begin_s = now_s + pause_s
        now_s = connection.send(begin_s, num_bytes)
        assert now_s >= begin_s + num_bytes / BYTES_PER_S - 1e-9


def test_without_a_pause_the_link_is_the_limit():
    connection = window(14_480)
    end_s = connection.send(0.0, 50e6)
    assert connection.send(end_s, 8e6) - end_s == pytest.approx(1.0)
    # A pause within the timeout keeps the window.
    end_s += 1.0
    assert connection.send(end_s + TIMEOUT_S, 8e6) - end_s == pytest.approx(1.0 + TIMEOUT_S)


@pytest.mark.parametrize(("timeouts", "halvings"), [(1.5, 1), (2.5, 2), (3.5, 3), (1e6, inf)])
def test_the_window_halves_for_each_timeout_of_silence(timeouts: float, halvings: float):
    connection = window(FULL / 64, largest_bytes=FULL)
    end_s = connection.send(0.0, 50e6)
    begin_s = end_s + timeouts * TIMEOUT_S
    first = max(FULL / 64, FULL / 2**halvings)
    took_s = connection.send(begin_s, 8e6) - begin_s
    assert took_s == pytest.approx(slow_start_s(8e6, first=first))


def test_a_window_beyond_the_link_survives_halvings_and_its_queue_lengthens_the_timeout():
    connection = window(FULL / 64, largest_bytes=4 * FULL)
    end_s = connection.send(0.0, 50e6)
    # A queue of three round trips: the kernel has sent the last byte so much earlier.
    queue_s, timeout_s = 3 * RTT_S, TIMEOUT_S + 3 * RTT_S
    begin_s = end_s - queue_s + 2.9 * timeout_s  # two halvings: what is left fills the link
    end_s = connection.send(begin_s, 50e6)
    assert end_s - begin_s == pytest.approx(50e6 / BYTES_PER_S)
    begin_s = end_s - queue_s + 3.9 * timeout_s  # three
    assert connection.send(begin_s, 8e6) - begin_s == pytest.approx(
        slow_start_s(8e6, first=FULL / 2)
    )


def test_the_senders_buffer_bounds_the_queue_and_the_window_grows_to_twice_as_much():
    connection = window(FULL / 64, buffer_bytes=1.5 * FULL)
    end_s = connection.send(0.0, 50e6)
    queue_s, timeout_s = RTT_S / 2, TIMEOUT_S + RTT_S / 2
    begin_s = end_s - queue_s + 2.9 * timeout_s
    assert connection.send(begin_s, 8e6) - begin_s == pytest.approx(
        slow_start_s(8e6, first=3 * FULL / 4)
    )


def test_a_small_buffer_of_the_sender_leaves_once_in_a_round_trip():
    buffer_bytes = FULL / 2
    connection = window(buffer_bytes / 2, buffer_bytes=buffer_bytes)
    # A window of half a buffer, then whole buffers; the last leaves at the rate of the link.
    took_s = connection.send(3.0, 10.5 * buffer_bytes) - 3.0
    assert took_s == pytest.approx(10 * RTT_S + buffer_bytes / BYTES_PER_S)


def test_a_small_largest_window_limits_the_rate_of_a_long_link():
    connection = window(FULL / 4, largest_bytes=FULL / 2)
    connection.send(0.0, 50e6)
    end_s = connection.send(100.0, 50e6)
    assert connection.send(end_s, 8e6) - end_s == pytest.approx(2 * 8e6 / BYTES_PER_S)


def test_a_window_that_messages_do_not_use_does_not_grow():
    connection = window(1e6)
    for number in range(5):  # less than half of the window in each round trip
        connection.send(number * RTT_S, 0.4e6)
    begin_s = 5 * RTT_S
    assert connection.send(begin_s, 1.5e6) - begin_s == pytest.approx(RTT_S + 0.5e6 / BYTES_PER_S)


def test_a_link_without_latency_never_waits():
    connection = CongestionWindow(restart_bytes=1.0, rtt_s=0.0, bytes_per_s=2.0)
    assert connection.send(1.0, 4.0) == 3.0
