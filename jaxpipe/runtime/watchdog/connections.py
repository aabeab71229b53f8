"""What the TCP connections of this process carry, as its kernel counts it.

A message arrives as a whole or not at all, and what follows it on its connection, heartbeats too,
waits behind it. So a rank that hears nothing may wait for a slow link, a link that is cut, or a
process that is stopped; the kernel knows which::

    bytes arrive that are no heartbeats               the link is slow
    what is sent stays without acknowledgement        the link is cut, or the host is gone
    neither: the other kernel acknowledges            the process is stopped

Source: `struct tcp_info` in linux/tcp.h. Other systems do not tell, and messages that take other
ways (InfiniBand, shared memory) are not seen.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_TCP_INFO = 11
_ESTABLISHED = 1
# State, retransmissions without an answer, bytes without acknowledgement, bytes received.
_STATE, _RETRANSMITS, _UNACKNOWLEDGED, _RECEIVED = 0, 2, 24, 128
_NUM_BYTES = 136
_CUT_RETRANSMITS = 3
"""Each waits twice as long as the one before, from 0.2 s on: 1.4 s without any answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The bytes that a connection has received so far, and whether its other end answers."""

    num_received: int
    is_answered: bool = True


def connections() -> Iterator[Connection]:
    """Yield the TCP connections of this process to other hosts, as far as the kernel tells."""
    try:
        descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return
    for descriptor in descriptors:
        # Another thread may close it meanwhile.
        with suppress(OSError, ValueError, struct.error):
            if os.readlink(_DESCRIPTORS / str(descriptor)).startswith("socket:"):
                connection = _connection(descriptor)
                if connection is not None:
                    yield connection


def _connection(descriptor: int) -> Connection | None:
    """Return the connection of a socket; None if it is no TCP connection to another host.

    Raises:
        OSError: it is no connected socket, or closed by now.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connected:
        if connected.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        peer, mine = connected.getpeername()[0], connected.getsockname()[0]
        if peer == mine or ip_address(peer.partition("%")[0]).is_loopback:
            return None
        facts = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _NUM_BYTES)
    return connection_of(facts)


def connection_of(facts: bytes) -> Connection | None:
    """Return a connection by its `struct tcp_info`; None if it is not established.

    Raises:
        struct.error: an old kernel counts no bytes.
    """
    if facts[_STATE] != _ESTABLISHED:
        return None
    (unacknowledged,) = struct.unpack_from("=I", facts, _UNACKNOWLEDGED)
    (num_received,) = struct.unpack_from("=Q", facts, _RECEIVED)
    is_cut = unacknowledged > 0 and facts[_RETRANSMITS] >= _CUT_RETRANSMITS
    return Connection(num_received=num_received, is_answered=not is_cut)


class Arrivals:
    """What arrives from other hosts while a rank waits: messages, or its heartbeats alone.

    `update` is called with the seconds waited so far, and with the bytes of the heartbeats that
    have been received. Messages arrive if within the last `window_s` more bytes have come than
    heartbeats and `margin_bytes`.
    """

    def __init__(
        self,
        *,
        window_s: float,
        margin_bytes: int,
        read: Callable[[], Iterator[Connection]] = connections,
    ) -> None:
        self._window_s, self._margin_bytes, self._read = window_s, margin_bytes, read
        self._counts: deque[tuple[float, int]] = deque()
        self.is_answered = True
        """Whether the other ends of all connections answer."""

    def clear(self) -> None:
        """Forget what has arrived: a wait is over."""
        self._counts.clear()
        self.is_answered = True

    def update(self, waited_s: float, *, heartbeat_bytes: int) -> None:
        """Read the counts of the kernel."""
        counts = tuple(self._read())
        self.is_answered = all(connection.is_answered for connection in counts)
        received = sum(connection.num_received for connection in counts)
        self._counts.append((waited_s, received - heartbeat_bytes))
        while len(self._counts) > 1 and self._counts[1][0] <= waited_s - self._window_s:
            self._counts.popleft()

    @property
    def num_bytes(self) -> int:
        """The bytes of messages, at least, that have arrived within the window; 0 of heartbeats."""
        if len(self._counts) < 2:
            return 0
        num_bytes = self._counts[-1][1] - self._counts[0][1]
        return num_bytes if num_bytes > self._margin_bytes else 0

    @property
    def bytes_per_s(self) -> float:
        """The rate at which messages arrive."""
        if not self.num_bytes:
            return 0.0
        return self.num_bytes / (self._counts[-1][0] - self._counts[0][0])
