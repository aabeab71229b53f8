"""Heartbeats and causes between ranks that share no folder, as messages.

::

    rank 0 ──► watch/rank-0.json ──► ranks on the same disk
       └─────► message, about 1 KiB ► each rank on another disk     every 0.6 s, and every 0.2 s
                                                                      while the rank waits
    the first cause ──► cause.json here ──► message ──► cause.json on every other disk

No rank relays for another: with a relay that is stopped, the ranks behind it would seem stopped.
Not exported by the package, which needs no jax.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

import jax
import msgspec
import numpy as np

from jaxpipe.comm import CONTROL_TAG, Receiving, Sending, Transport
from jaxpipe.errors import DeadlineError, RunError
from jaxpipe.runtime.watchdog.cause import Cause
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat, most_bytes

_NUM_BYTES = 512
"""Of a message, beside a heartbeat: for the words of a cause."""
_CALM_TICKS = 3
_SECONDS_TO_TELL = 0.3
_SECONDS_TO_END = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """One message: a heartbeat, a cause, or with neither the last one of its sender."""

    heartbeat: Heartbeat | None = None
    cause: Cause | None = None


class HeartbeatExchange:
    """The heartbeats of this rank to `others`, and theirs; any thread may call it.

    `on_cause` is called with each cause that arrives.
    """

    def __init__(
        self,
        transport: Transport,
        others: Iterable[int],
        *,
        on_cause: Callable[[Cause], object],
    ) -> None:
        self._transport = transport
        self._on_cause = on_cause
        self._heartbeats: dict[int, Heartbeat] = {}
        self._lock = Lock()
        self._num_ticks = 0
        self._num_bytes = _NUM_BYTES + most_bytes(transport.num_ranks)
        self._num_received = 0
        self._sendings: dict[int, Sending | None] = dict.fromkeys(others)
        self._receivings = {rank: self._post(rank) for rank in self._sendings}

    @property
    def heartbeats(self) -> dict[int, Heartbeat]:
        """The latest heartbeats of the others, except those that have ended in order."""
        with self._lock:
            return dict(self._heartbeats)

    @property
    def received_bytes(self) -> int:
        """The bytes of all heartbeats and causes that have arrived."""
        return self._num_received * self._num_bytes

    def tick(self, mine: Heartbeat, *, waits: bool) -> None:
        """Take what has arrived, and send the heartbeat: each time if the rank waits."""
        with self._lock:
            self._receive()
            self._num_ticks += 1
            if waits or self._num_ticks % _CALM_TICKS == 1:
                self._send(_Note(heartbeat=mine))

    def tell(self, cause: Cause) -> None:
        """Send a cause to all others, and wait for a moment, since the process may end next."""
        with self._lock, suppress(RunError):
            self._wait_for_sends(timeout_s=_SECONDS_TO_TELL)
            self._send(_Note(cause=cause))
            self._wait_for_sends(timeout_s=_SECONDS_TO_TELL)
        time.sleep(_SECONDS_TO_TELL)  # a process that ends may take with it what TCP holds

    def close(self) -> None:
        """Send that this was the last message, and wait until the others have sent theirs."""
        deadline_s = time.monotonic() + _SECONDS_TO_END
        with self._lock, suppress(RunError):
            self._wait_for_sends(timeout_s=_SECONDS_TO_END)
            self._send(_Note())
            for rank in tuple(self._receivings):
                while rank in self._receivings:
                    left_s = max(0.0, deadline_s - time.monotonic())
                    self._take(rank, timeout_s=left_s)
            self._wait_for_sends(timeout_s=_SECONDS_TO_END)

    def _post(self, rank: int) -> Receiving:
        like = jax.ShapeDtypeStruct((self._num_bytes,), np.dtype(np.uint8))
        return self._transport.receive(like, source=rank, tag=CONTROL_TAG)

    def _receive(self) -> None:
        for rank in tuple(self._receivings):
            # A lost rank sends no more; its last heartbeat grows old.
            with suppress(RunError):
                while rank in self._receivings:
                    self._take(rank, timeout_s=0.0)

    def _take(self, rank: int, *, timeout_s: float) -> None:
        """Take one message of a rank.

        Raises:
            DeadlineError: none has arrived.
            TransportError: none will.
        """
        content = np.asarray(self._receivings[rank].wait(timeout_s=timeout_s)).tobytes()
        self._num_received += 1
        note = msgspec.json.decode(content, type=_Note)
        if note.cause is None and note.heartbeat is None:
            del self._receivings[rank]
            self._heartbeats.pop(rank, None)
            return
        self._receivings[rank] = self._post(rank)
        if note.cause is not None:
            self._on_cause(note.cause)
        elif note.heartbeat is not None:
            self._heartbeats[rank] = note.heartbeat

    def _send(self, note: _Note) -> None:
        """Send to all whose last message has left: they do not pile up for a stopped rank."""
        message = np.frombuffer(_encoded(note, self._num_bytes), np.uint8)
        for rank in self._sendings:
            with suppress(RunError):
                self._wait_for(rank, timeout_s=0.0)
                self._sendings[rank] = self._transport.send(message, to=rank, tag=CONTROL_TAG)

    def _wait_for_sends(self, *, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for rank in self._sendings:
            with suppress(DeadlineError):
                self._wait_for(rank, timeout_s=max(0.0, deadline_s - time.monotonic()))

    def _wait_for(self, rank: int, *, timeout_s: float) -> None:
        sending = self._sendings[rank]
        if sending is not None:
            sending.wait(timeout_s=timeout_s)
            self._sendings[rank] = None


def _encoded(note: _Note, num_bytes: int) -> bytes:
    """Return a note as JSON of this length; blanks may follow it, and a long message is cut."""
    content = msgspec.json.encode(note)
    while len(content) > num_bytes and note.cause is not None:
        shorter = note.cause.message[: len(note.cause.message) // 2]
        note = _Note(cause=replace(note.cause, message=shorter))
        content = msgspec.json.encode(note)
    assert len(content) <= num_bytes, content
    return content.ljust(num_bytes)
