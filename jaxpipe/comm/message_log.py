"""Transport wrapper that logs each message of a rank: its peer, its tag, its bytes and its times.

The transport appends one entry per message; everything else happens when the log is taken.
"""

from collections import deque
from collections.abc import Callable
from math import isnan, nan

import jax
import numpy as np

from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.comm.message_timing import MessageTiming, timing_of
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport

_CHANNEL = [("source", "<i4"), ("to", "<i4"), ("tag", "<i4")]
SENT = np.dtype([*_CHANNEL, ("num_bytes", "<i8"), ("started_s", "<f8")])
"""A sent message; `started_s` is NaN if the transport does not tell it."""
RECEIVED = np.dtype([*_CHANNEL, ("posted_s", "<f8"), ("over_s", "<f8")])
"""A received message; those of a transport that tells no times are not logged."""

_Entry = tuple[int, int, int, MessageTiming | None]


class MessageLog:
    """The messages of a rank since its log was last taken, from any thread.

    Messages of one peer and tag are in the order in which they were sent, or posted. Those that
    are not over yet stay in the log.
    """

    def __init__(self, *, rank: int) -> None:
        self._rank = rank
        # Appending to a deque is atomic: senders need no lock.
        self.sent: deque[_Entry] = deque()
        self.received: deque[_Entry] = deque()

    def take_sent(self) -> np.ndarray:
        """Return the messages that were handed to the network, as an array of `SENT`."""
        entries = _taken(self.sent, lambda timing: timing.started_s)
        return np.array(
            [
                (self._rank, to, tag, num_bytes, started_s)
                for (to, tag, num_bytes, _), started_s in entries
            ],
            SENT,
        )

    def take_received(self) -> np.ndarray:
        """Return the messages that were received, as an array of `RECEIVED`."""
        entries = _taken(self.received, lambda timing: timing.over_s)
        return np.array(
            [
                (source, self._rank, tag, nan if timing is None else timing.started_s, over_s)
                for (source, tag, _, timing), over_s in entries
            ],
            RECEIVED,
        )


class LoggedTransport(ForwardingTransport):
    """Forwards all calls, and appends each message to a log.

    >>> from jaxpipe.comm.local import LocalWorld
    >>> log = MessageLog(rank=0)
    >>> logged = LoggedTransport(LocalWorld(1).transport(0), log)
    >>> sending = logged.send(np.zeros(3, np.float32), to=0, tag=7)
    >>> log.take_sent()[["source", "to", "tag", "num_bytes"]].tolist()
    [(0, 0, 7, 12)]
    """

    def __init__(self, transport: Transport, log: MessageLog) -> None:
        super().__init__(transport)
        self._log = log

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to`."""
        num_bytes = num_bytes_of(array)
        sending = self._transport.send(array, to=to, tag=tag)
        self._log.sent.append((to, tag, num_bytes, timing_of(sending)))
        return sending

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        receiving = self._transport.receive(like, source=source, tag=tag)
        if (timing := timing_of(receiving)) is not None:
            self._log.received.append((source, tag, 0, timing))
        return receiving


def _taken(
    entries: deque[_Entry], time_of: Callable[[MessageTiming], float]
) -> list[tuple[_Entry, float]]:
    """Remove and return the entries whose time is known, each with its time."""
    taken: list[tuple[_Entry, float]] = []
    left: list[_Entry] = []
    blocked: set[tuple[int, int]] = set()
    for _ in range(len(entries)):  # others may append meanwhile
        entry = entries.popleft()
        peer, tag, _, timing = entry
        time_s = nan if timing is None else time_of(timing)
        # Messages of a channel stay in order: a later one waits for those before it.
        if (timing is not None and isnan(time_s)) or (peer, tag) in blocked:
            blocked.add((peer, tag))
            left.append(entry)
        else:
            taken.append((entry, time_s))
    entries.extendleft(reversed(left))
    return taken
