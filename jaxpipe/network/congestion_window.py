"""Congestion window: how a TCP connection accelerates again after it was idle.

A connection may have one window of bytes in flight per round trip. The window doubles each round
trip until it fills the link; after an idle time it has shrunk, and the next messages start slowly::

    bytes/s                ┌──────── link           8 kB window, link of 4 windows per round trip
                   ┌──┐    │
          ┌┐       │  │    │
          ┘└───────┘  └────┘
          │   RTT  │  RTT  │

Sources: RFC 6928 (initial window), RFC 9293 and RFC 2861 (restart after idle); Linux,
`tcp_cwnd_restart`: the window halves once for each retransmission timeout of idleness.
"""

from math import ceil, inf

MIN_TIMEOUT_S = 0.2
"""Linux' lower bound on what the retransmission timeout adds to the round trip, `TCP_RTO_MIN`."""


class CongestionWindow:
    """The window of one direction of one or more parallel connections that share a link.

    `restart_bytes` is the window after a long idle time, of all connections together. The window
    never exceeds what fills the link, `bytes_per_s * rtt_s`.
    """

    __slots__ = (
        "_bytes_per_s",
        "_full",
        "_last_s",
        "_restart",
        "_round_s",
        "_rtt_s",
        "_sent",
        "_timeout_s",
        "_window",
    )

    def __init__(self, *, restart_bytes: float, rtt_s: float, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._rtt_s = rtt_s
        self._timeout_s = rtt_s + MIN_TIMEOUT_S
        self._full = bytes_per_s * rtt_s
        self._restart = min(restart_bytes, self._full)
        self._window = self._restart
        self._last_s = -inf  # when the last byte was sent
        self._round_s = -inf  # when the current round trip began, and its bytes so far
        self._sent = 0.0

    def send(self, start_s: float, num_bytes: float) -> float:
        """Return when the last byte leaves of a message whose first byte may leave at `start_s`.

        Calls come in the order of time.

        >>> window = CongestionWindow(restart_bytes=1e6, rtt_s=0.5, bytes_per_s=8e6)
        >>> window.send(0.0, 8e6)  # 1 MB, 2 MB, then at the rate of the link
        1.625
        """
        self._shrink(start_s)
        now_s = start_s
        while self._window < self._full:
            if now_s >= self._round_s + self._rtt_s:
                self._begin_round(now_s)
                continue
            part = min(num_bytes, self._window - self._sent)
            self._sent += part
            num_bytes -= part
            now_s += part / self._bytes_per_s
            if num_bytes <= 0:
                break
            # The window is in flight: the first acknowledgement arrives a round trip after its
            # byte, and releases two windows' worth in the next round.
            now_s = max(now_s, self._round_s + self._rtt_s)
        else:
            now_s += num_bytes / self._bytes_per_s
        self._last_s = now_s
        return now_s

    def _shrink(self, now_s: float) -> None:
        idle_s = now_s - self._last_s
        if idle_s <= self._timeout_s or self._window <= self._restart:
            return
        halvings = ceil(idle_s / self._timeout_s) - 1
        # Far more halvings than the window has bits would overflow the float.
        self._window = max(self._restart, self._window / 2.0 ** min(halvings, 64))
        self._round_s, self._sent = -inf, 0.0

    def _begin_round(self, now_s: float) -> None:
        # Linux lets the window grow only where at least half of it was used.
        if 2 * self._sent >= self._window:
            self._window = min(self._full, self._window + self._sent)
        self._round_s, self._sent = now_s, 0.0
