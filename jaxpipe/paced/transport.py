"""A transport whose messages arrive when the switch says so."""

import socket
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TypeAlias

import jax

from jaxpipe.comm import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.envelope import Envelope
from jaxpipe.paced.protocol import NOTE_BYTES, Kind, Note, notes_of
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import Pace

_READ_BYTES = 2**14

Then: TypeAlias = Callable[[Receiving, float], None]
"""What is done with a message that has arrived, and when it did."""


def connect(path: Path, *, rank: int) -> socket.socket:
    """Return a connection of a rank to the switch that listens at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    connection.sendall(Note(Kind.HELLO, rank, 0, 0, 0.0, 0.0).to_bytes())
    return connection


class PacedTransport:
    """Moves arrays over another transport, and lets their receivers wait as emulated links would.

    A message counts as `scale.meant(num_bytes)` bytes to the links. Who waits for one is due
    when it arrives. Nothing polls: a rank sleeps until the switch wakes it, and by then the payload
    is long there, if it is so small that its MPI sends it unasked. So it is asked for then, and no
    sooner: what was posted would have to be looked at all along.
    """

    def __init__(
        self,
        transport: Transport,
        connection: socket.socket,
        *,
        num_ranks: int,
        pace: Pace,
        scale: Scale,
    ) -> None:
        """`connection` is what `connect` returned; only the first `num_ranks` ranks take part."""
        self._transport = transport
        self._num_ranks = num_ranks
        self._pace = pace
        self._scale = scale
        self._lock = Lock()
        self._awaited: defaultdict[tuple[int, int], deque[_Arrival]] = defaultdict(deque)
        self._arrived: defaultdict[tuple[int, int], deque[float]] = defaultdict(deque)
        self._connection = connection
        self._thread = Thread(target=self._listen, name=f"arrivals {self.rank}", daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return self._num_ranks

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to`, when the calling thread is due."""
        sending = self._transport.send(array, to=to, tag=tag)
        due_s, num_bytes = self._pace.now(), self._scale.meant(num_bytes_of(array))
        self._tell(Note(Kind.POSTED, self.rank, to, tag, num_bytes, due_s))
        return _PacedSending(sending, due_s)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        return self._expect(like, source=source, tag=tag, then=None)

    def receive_then(
        self,
        like: jax.ShapeDtypeStruct,
        *,
        source: int,
        tag: int,
        then: Then,
    ) -> None:
        """Start to receive, and call `then` with the time at which it has arrived."""
        self._expect(like, source=source, tag=tag, then=then)

    def join(self, *, tag: int) -> None:
        """Say that this rank has come to the sum with this tag, so that others may send to it."""
        self._tell(Note(Kind.JOINED, self.rank, 0, tag, 0.0, self._pace.now()))

    def close(self, *, error: BaseException | None = None) -> None:
        """Leave the switch, after the last message; with an `error`, end the whole job at once."""
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        if error is not None:
            self._transport.close(error=error)

    def _tell(self, note: Note) -> None:
        with self._lock:
            self._connection.sendall(note.to_bytes())

    def _expect(
        self,
        like: jax.ShapeDtypeStruct,
        *,
        source: int,
        tag: int,
        then: Then | None,
    ) -> "_Arrival":
        receive = partial(self._transport.receive, like, source=source, tag=tag)
        envelope = Envelope(source, self.rank, tag, num_bytes_of(like))
        arrival = _Arrival(receive, envelope, self._pace, then)
        with self._lock:
            if not self._arrived[source, tag]:
                self._awaited[source, tag].append(arrival)
                return arrival
            due_s = self._arrived[source, tag].popleft()
        arrival.arrive(due_s)
        return arrival

    def _listen(self) -> None:
        """Take in what the switch tells, until it or this rank hangs up."""
        heard = bytearray()
        while content := self._connection.recv(_READ_BYTES):
            heard += content
            whole = len(heard) // NOTE_BYTES * NOTE_BYTES
            for note in notes_of(heard[:whole]):
                self._arrive(note)
            del heard[:whole]

    def _arrive(self, note: Note) -> None:
        channel = (note.source, note.tag)
        with self._lock:
            if not self._awaited[channel]:
                self._arrived[channel].append(note.due_s)
                return
            arrival = self._awaited[channel].popleft()
        arrival.arrive(note.due_s)


class _PacedSending:
    __slots__ = ("_due_s", "_sending")

    def __init__(self, sending: Sending, due_s: float) -> None:
        self._sending, self._due_s = sending, due_s

    def wait(self, *, timeout_s: float) -> float:
        self._sending.wait(timeout_s=timeout_s)
        return self._due_s


class _Arrival:
    """A message on its way in: its payload, and when it is there."""

    __slots__ = ("_due_s", "_envelope", "_event", "_pace", "_receive", "_then")

    def __init__(
        self,
        receive: Callable[[], Receiving],
        envelope: Envelope,
        pace: Pace,
        then: Then | None,
    ) -> None:
        self._receive, self._envelope = receive, envelope
        self._pace, self._then = pace, then
        self._event = Event()
        self._due_s = 0.0

    def arrive(self, due_s: float) -> None:
        """Let who waits go on; called once."""
        self._due_s = due_s
        self._event.set()
        if self._then is not None:
            self._then(self, due_s)

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        if not self._event.wait(timeout_s):
            raise self._envelope.late(waited_s=timeout_s)
        array = self._receive().wait(timeout_s=timeout_s)
        self._pace.reach(self._due_s)
        return array
