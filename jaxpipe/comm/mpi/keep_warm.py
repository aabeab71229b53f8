"""Keep TCP connections from slowing down while they are silent, by one byte every 0.1 s.

Linux lets a connection that was idle for longer than its retransmission timeout, at least 0.2 s,
start slowly again: the first message after a silence takes several round trips more. A pipeline is
silent on each connection for most of a step, and its all-reduces always follow a silence::

    large message ── silence ── large message        8 round trips more, on 134 ms and 1 Gbps
    large message ─·─·─·─·─·─·─ large message        none

A rank keeps those connections warm on which it has sent a message of more than the first window.
That is Linux' default only (`net.ipv4.tcp_slow_start_after_idle=1`), and only between hosts: with
the setting at 0, or with all ranks on one host, nothing is ever sent.

The bytes carry nothing: no result depends on them, and none of them is waited for.
"""

from collections.abc import Callable
from contextlib import suppress
from math import inf

import numpy as np

from jaxpipe.comm.mpi.api import MPI, WARM_TAG
from jaxpipe.topo.host_tcp import FIRST_WINDOW_BYTES

INTERVAL_S = 0.1
"""Half of the least timeout after which a silence counts."""


class KeepWarm:
    """When one rank sends a byte, and to whom; `tend` is called often, by one thread at a time.

    `remote` are the ranks on other hosts. `sends` is False on a host whose connections keep their
    speed in silences; the bytes of other ranks are received all the same. `send_byte(to)` starts to
    send, and returns a function that returns whether the byte has left; `receive_all` receives
    the bytes that have arrived.
    """

    def __init__(
        self,
        send_byte: Callable[[int], Callable[[], bool]],
        receive_all: Callable[[], object],
        *,
        remote: frozenset[int],
        sends: bool,
    ):
        self._send_byte = send_byte
        self._receive_all = receive_all
        self._remote = remote
        self._sends = sends
        self._last_s: dict[int, float] = {}
        self._has_left: dict[int, Callable[[], bool]] = {}
        self._next_s = -inf

    def sent(self, to: int, *, num_bytes: int, now_s: float) -> None:
        """Note a message: from a large one on, its connection is kept warm."""
        if (
            self._sends
            and to in self._remote
            and (num_bytes > FIRST_WINDOW_BYTES or to in self._last_s)
        ):
            self._last_s[to] = now_s

    def tend(self, now_s: float) -> None:
        """Receive what has arrived, and send a byte on each connection that has been silent."""
        if not self._remote or now_s < self._next_s:  # all ranks on one host: nothing to do
            return
        self._next_s = now_s + INTERVAL_S / 2
        self._receive_all()
        # A copy: other threads add to it meanwhile.
        for to, last_s in tuple(self._last_s.items()):
            if self._sends and now_s - last_s >= INTERVAL_S:
                self._send(to, now_s)

    def stop(self) -> None:
        """Send no more; bytes that arrive are still received."""
        self._sends = False

    def _send(self, to: int, now_s: float) -> None:
        has_left = self._has_left.get(to)
        # One at a time: a connection that does not accept a byte is not silent.
        if has_left is None or has_left():
            self._has_left[to] = self._send_byte(to)
            self._last_s[to] = now_s


def keep_warm(comm: MPI.Intracomm, *, remote: frozenset[int], sends: bool) -> KeepWarm:
    """Return what keeps the connections of this rank warm, over MPI."""
    byte, received = np.zeros(1, np.uint8), np.zeros(1, np.uint8)

    def send_byte(to: int) -> Callable[[], bool]:
        # A lost rank fails the messages that matter; here it is no error.
        try:
            return comm.Isend([byte, MPI.BYTE], dest=to, tag=WARM_TAG).Test
        except MPI.Exception:
            return _never

    def receive_all() -> None:
        with suppress(MPI.Exception):
            while comm.Iprobe(MPI.ANY_SOURCE, WARM_TAG):
                comm.Recv([received, MPI.BYTE], MPI.ANY_SOURCE, WARM_TAG)

    return KeepWarm(send_byte, receive_all, remote=remote, sends=sends)


def _never() -> bool:
    return False
