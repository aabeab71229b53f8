"""The only thread of a rank that calls NCCL: it launches messages in an order both ends agree on.

NCCL forbids two threads in one communicator, and both ranks must launch in the same order. So
callers only queue their messages; the thread matches them with those of the other rank (see
`matching`), launches them, and polls their events. It never waits for the GPU.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from queue import Empty, SimpleQueue
from threading import Event, Thread

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm.nccl.binding import Done, NcclChannel
from jaxpipe.comm.nccl.launch_order import Incoming, Outgoing
from jaxpipe.comm.nccl.nccl_message import NcclMessage
from jaxpipe.comm.tags import NCCL_TAG
from jaxpipe.comm.transport import Receiving, Transport
from jaxpipe.errors import DeadlineError, RunError, TransportError

_LIKE_CONTROL = jax.ShapeDtypeStruct((3,), np.dtype(np.int64))
_SHORTEST_PAUSE_S = 5e-5
_LONGEST_PAUSE_S = 1e-3


class _Control(IntEnum):
    """Control messages between two ranks, each with a tag and a number of bytes."""

    POSTED = 0
    LAUNCHED = 1
    LEAVING = 2
    """This rank sends and posts nothing more."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """Another rank: the channels to and from it, and the messages that are not launched yet."""

    rank: int
    to: NcclChannel
    back: NcclChannel
    outgoing: Outgoing[NcclMessage] = field(default_factory=Outgoing)
    incoming: Incoming[NcclMessage] = field(default_factory=Incoming)
    control: Receiving | None = None
    has_left: bool = False


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate any error of a binding into a `TransportError` that names the failed action."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise TransportError(f"cannot {doing} with NCCL: {error}") from error


class Launcher:
    """The peers of a rank, and the thread that launches the messages to and from them.

    After an error no message can be matched any more: all of them, also later ones, fail with it.
    """

    def __init__(self, transport: Transport, peers: dict[int, Peer]) -> None:
        self._transport, self._peers = transport, peers
        self._new: SimpleQueue[NcclMessage] = SimpleQueue()
        self._unfinished: dict[NcclMessage, None] = {}
        self._launched: list[NcclMessage] = []
        self._error: TransportError | DeadlineError | None = None
        self._woken, self._stopped = Event(), Event()
        self._thread = Thread(target=self._run, name=f"nccl {transport.rank}", daemon=True)
        self._thread.start()

    def add(self, message: NcclMessage) -> None:
        """Queue a message to or from a peer, and return at once."""
        # Before `put`: the thread may complete a message, and remove it, at once.
        self._unfinished[message] = None
        self._new.put(message)
        self._woken.set()

    def unfinished(self) -> tuple[NcclMessage, ...]:
        """Return the messages that are not complete."""
        return tuple(self._unfinished)

    def leave(self, *, timeout_s: float) -> None:
        """Announce to the peers that this rank closes, and wait until all have announced it.

        Raises:
            DeadlineError: a peer has not after `timeout_s`.
        """
        for peer in self._peers.values():
            self._notify(peer, _Control.LEAVING, 0, 0)
        start_s = time.monotonic()
        while missing := [peer.rank for peer in self._peers.values() if not peer.has_left]:
            if self._error is not None:
                raise _again(self._error)
            if time.monotonic() - start_s >= timeout_s:
                raise DeadlineError(
                    f"timed out after {timeout_s:.1f} s waiting for ranks {missing} to close"
                )
            time.sleep(_LONGEST_PAUSE_S)

    def stop(self, *, timeout_s: float) -> None:
        """End the thread, or return after `timeout_s`."""
        self._stopped.set()
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stopped.is_set():
            try:
                has_moved = self._turn()
            except (TransportError, DeadlineError) as error:
                self._fail(error)
                has_moved = False
            now_s = time.monotonic()
            last_s = now_s if has_moved else last_s
            # Pauses grow with the idle time: a message waits for an eighth of it at most.
            pause_s = min(max((now_s - last_s) / 8, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            self._woken.wait(pause_s)
            self._woken.clear()

    def _turn(self) -> bool:
        """Make all progress that is possible now; return whether there was any."""
        has_moved = self._take_new()
        # After an error the order of launches is lost: nothing more may be matched.
        if self._error is None:
            for peer in self._peers.values():
                has_moved |= self._read_controls(peer)
            has_moved |= self._end_launched()
        return has_moved

    def _take_new(self) -> bool:
        has_moved = False
        while True:
            try:
                message = self._new.get_nowait()
            except Empty:
                return has_moved
            has_moved = True
            if self._error is not None:
                self._end(message, _again(self._error))
            else:
                self._begin(message)

    def _begin(self, message: NcclMessage) -> None:
        envelope = message.envelope
        if envelope.source == self._transport.rank:
            peer = self._peers[envelope.to]
            if peer.outgoing.offer(envelope.tag, message) is not None:
                self._launch_send(peer, message)
        else:
            peer = self._peers[envelope.source]
            peer.incoming.post(envelope.tag, message)
            self._notify(peer, _Control.POSTED, envelope.tag, envelope.num_bytes)

    def _notify(self, peer: Peer, control: _Control, tag: int, num_bytes: int) -> None:
        content = np.array([control, tag, num_bytes], np.int64)
        # Not waited for: messages of one tag keep their order, and this thread must not block.
        self._transport.send(content, to=peer.rank, tag=NCCL_TAG)

    def _read_controls(self, peer: Peer) -> bool:
        has_moved = False
        while not peer.has_left:
            if peer.control is None:
                peer.control = self._transport.receive(
                    _LIKE_CONTROL, source=peer.rank, tag=NCCL_TAG
                )
            try:
                # A timeout of 0 polls: nothing may block this thread.
                control, tag, num_bytes = map(int, np.asarray(peer.control.wait(timeout_s=0.0)))
            except DeadlineError:
                break
            has_moved, peer.control = True, None
            if control == _Control.LEAVING:
                peer.has_left = True
            elif control == _Control.LAUNCHED:
                self._launch_receive(peer, peer.incoming.launched(tag), num_bytes=num_bytes)
            elif (message := peer.outgoing.posted(tag)) is not None:
                self._launch_send(peer, message)
        return has_moved

    def _launch_send(self, peer: Peer, message: NcclMessage) -> None:
        envelope = message.envelope
        # Announced before the launch: the receiver has to launch too before either can run.
        self._notify(peer, _Control.LAUNCHED, envelope.tag, envelope.num_bytes)
        if envelope.num_bytes > 0:  # an empty message is done without a kernel
            with translated(f"send {envelope}"):
                message.done = peer.to.send(message.array)
        self._launched.append(message)

    def _launch_receive(self, peer: Peer, message: NcclMessage, *, num_bytes: int) -> None:
        """Launch a receive; a message of another size goes to separate memory, to keep order."""
        envelope = message.envelope
        if num_bytes != envelope.num_bytes:
            # The sender has launched already; without a receive its kernel would wait indefinitely.
            message.array = jnp.empty(num_bytes, jnp.uint8)
            message.error = TransportError(f"got {num_bytes} bytes instead of {envelope}")
        if num_bytes > 0:
            with translated(f"receive {envelope}"):
                message.done = peer.back.receive(message.array)
        self._launched.append(message)

    def _end_launched(self) -> bool:
        before = len(self._launched)
        launched: list[NcclMessage] = []
        for message in self._launched:
            with translated(f"move {message.envelope}"):
                is_done = message.is_done()
            if is_done:
                self._end(message)
            else:
                launched.append(message)
        self._launched = launched
        return len(launched) < before

    def _fail(self, error: TransportError | DeadlineError) -> None:
        self._error = error
        for message in tuple(self._unfinished):
            self._end(message, _again(error))
        self._launched.clear()

    def _end(self, message: NcclMessage, error: TransportError | None = None) -> None:
        self._unfinished.pop(message, None)
        message.end(error)


def wait_for(done: Done, *, name: str, timeout_s: float) -> None:
    """Poll an event until it has happened; `name` is for the error.

    Raises:
        DeadlineError: it did not happen within `timeout_s`.
    """
    start_s = time.monotonic()
    while not done.is_done():
        if time.monotonic() - start_s >= timeout_s:
            raise DeadlineError(f"timed out after {timeout_s:.1f} s waiting for {name}")
        time.sleep(_SHORTEST_PAUSE_S)


def _again(error: TransportError | DeadlineError) -> TransportError:
    """Return the error of a message that fails because another one has failed."""
    again = TransportError(str(error))
    again.__cause__ = error
    return again
