"""Congestion window: how a TCP connection accelerates again after it was idle.

A connection may have one window of bytes in flight per round trip. The window doubles each round
trip that uses it; after an idle time it has shrunk, and the next message starts slowly::

    bytes/s                ┌──────── link           8 kB window, link of 4 windows per round trip
                   ┌──┐    │
          ┌┐       │  │    │
          ┘└───────┘  └────┘
          │   RTT  │  RTT  │

A window that has grown beyond what the link holds keeps a queue in front of it, and survives some
halvings without effect. The sender's buffer bounds what is in flight, and with it this queue; the
window still grows to twice as much.

Sources: RFC 6928 (initial window), RFC 2861 (restart after idle), RFC 6298 (timeout); Linux,
`tcp_cwnd_restart`: the window halves once for each retransmission timeout of idleness.
"""

from math import ceil, inf

MIN_TIMEOUT_S = 0.2
"""Linux' lower bound on what the retransmission timeout adds to the round trip, `TCP_RTO_MIN`."""


class CongestionWindow:
    """The window of one direction of one or more parallel connections that share a link.

    `restart_bytes` is the window after a long idle time, of all connections together, and
    `largest_bytes` what it grows to at most: the receiver's buffers, or less where the link's queue
    overflows before they are full. `buffer_bytes` are those of the sender.
    """

    __slots__ = (
        "_buffer",
        "_burst",
        "_bytes_per_s",
        "_full",
        "_largest",
        "_last_s",
        "_restart",
        "_round_s",
        "_rtt_s",
        "_sent",
        "_window",
    )

    def __init__(
        self,
        *,
        restart_bytes: float,
        rtt_s: float,
        bytes_per_s: float,
        largest_bytes: float = inf,
        buffer_bytes: float = inf,
    ) -> None:
        # One window per round trip is the rate of a link that holds more.
        rate = bytes_per_s if rtt_s == 0 else min(bytes_per_s, largest_bytes / rtt_s)
        self._bytes_per_s = rate
        self._rtt_s = rtt_s
        self._full = rate * rtt_s
        self._buffer = buffer_bytes
        # Linux lets the window grow to twice what is in flight.
        self._largest = min(largest_bytes, 2 * buffer_bytes)
        self._restart = min(restart_bytes, self._largest)
        self._window = self._restart
        self._last_s = -inf  # when the last byte was sent
        self._burst = 0.0  # the bytes sent without a pause up to then
        self._round_s = -inf  # when the current round trip began, and its bytes so far
        self._sent = 0.0

    def send(self, start_s: float, num_bytes: float) -> float:
        """Return when the last byte leaves of a message whose first byte may leave at `start_s`.

        Calls come in the order of time.

        >>> window = CongestionWindow(restart_bytes=1e6, rtt_s=0.5, bytes_per_s=8e6)
        >>> window.send(0.0, 8e6)  # 1 MB, 2 MB, then at the rate of the link
        1.625
        """
        self._pause(start_s)
        now_s, left = start_s, num_bytes
        while (in_flight := min(self._window, self._buffer)) < self._full:
            if now_s >= self._round_s + self._rtt_s:
                self._begin_round(now_s)
                continue
            part = min(left, in_flight - self._sent)
            self._sent += part
            left -= part
            now_s += part / self._bytes_per_s
            if left <= 0:
                break
            # The window is in flight: the first acknowledgement arrives a round trip after its
            # byte, and releases two windows' worth in the next round.
            now_s = max(now_s, self._round_s + self._rtt_s)
        else:
            now_s += left / self._bytes_per_s
            self._grow(left)
        self._last_s = now_s
        return now_s

    def _pause(self, now_s: float) -> None:
        if now_s <= self._last_s:
            return
        # What stands in the queue of the link lengthens the round trip, and thus the timeout; the
        # kernel counts idleness from when the last byte entered the queue.
        in_flight = min(self._window, self._burst, self._buffer)
        queue_s = max(0.0, in_flight / self._bytes_per_s - self._rtt_s)
        timeout_s = self._rtt_s + queue_s + MIN_TIMEOUT_S
        idle_s = now_s - self._last_s + queue_s
        self._burst = 0.0
        if idle_s <= timeout_s or self._window <= self._restart:
            return
        halvings = ceil(idle_s / timeout_s) - 1
        # Far more halvings than the window has bits would overflow the float.
        self._window = max(self._restart, self._window / 2.0 ** min(halvings, 64))
        self._round_s, self._sent = -inf, 0.0

    def _begin_round(self, now_s: float) -> None:
        # Linux lets the window grow only where at least half of it was used.
        if 2 * self._sent >= self._window:
            self._window = min(self._largest, self._window + self._sent)
        self._round_s, self._sent = now_s, 0.0

    def _grow(self, num_bytes: float) -> None:
        """Let the window grow by what a full link acknowledges, to twice what is in flight."""
        self._burst += num_bytes
        grown = min(self._window + num_bytes, 2 * self._burst, self._largest)
        self._window = max(self._window, grown)
