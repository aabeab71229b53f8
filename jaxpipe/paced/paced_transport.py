"""Paced transport: receivers wait until the switch reports that a message has arrived."""

import socket
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeAlias

import jax

from jaxpipe.comm import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.tags import NORM_TAG, NUM_MESSAGE_TAGS
from jaxpipe.paced.protocol import Packet, PacketKind, PacketReader
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import VirtualClock
from jaxpipe.runtime.outer.outer_buckets import CONTROL_TAG
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, reduce

_TAGS_OF_SCALARS = frozenset({reduction_tag(reduce(0, Bucket.SCALARS)), NORM_TAG, CONTROL_TAG})
"""Of a step, and of an outer step."""
_READ_BYTES = 2**14

Then: TypeAlias = Callable[[Receiving, float], None]
"""Callback for a message that has arrived, with the time of its arrival."""


def connect(path: Path, *, rank: int) -> socket.socket:
    """Return the connection of a rank to the switch that listens at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    connection.sendall(Packet(PacketKind.HELLO, rank, 0, 0, 0.0, 0.0).to_bytes())
    return connection


class PacedTransport:
    """Moves arrays over an inner transport; receivers wait as emulated links would let them.

    A message counts as `scale.meant(num_bytes)` bytes to the links; one of scalars counts as it is,
    since a paced step sums as many of them as a real one. A thread that waits for a message is due
    when it arrives. A rank sleeps until the switch wakes it up. Only then it posts the receive of
    the payload, which has long arrived if it is so small that MPI sends it eagerly: a receive that
    is posted earlier would have to be polled all the time.

    With `blocking_s` messages between stages block: a message moves only while its sender and its
    receiver wait, as in `jaxpipe.simulate.engine.rendezvous`, and `send` returns on its arrival.
    """

    def __init__(
        self,
        transport: Transport,
        connection: socket.socket,
        *,
        num_ranks: int,
        clock: VirtualClock,
        scale: Scale,
        blocking_s: float | None = None,
    ) -> None:
        """`connection` is that of `connect`; only the first `num_ranks` ranks take part.

        `blocking_s` is the timeout of a blocking send, in seconds; None: messages overlap.
        """
        self._transport = transport
        self._num_ranks = num_ranks
        self._clock = clock
        self._scale = scale
        self._blocking_s = blocking_s
        self._sent: SimpleQueue[float] = SimpleQueue()
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
        """Start to send `array` to the rank `to`, at the time when the calling thread is due."""
        # The payload first: when the switch reports it, it must be on its way.
        sending = self._transport.send(array, to=to, tag=tag)
        # The sender's virtual time: Python's own delay is no part of the emulation.
        due_s, size = self._clock.now(), num_bytes_of(array)
        num_bytes = float(size) if tag in _TAGS_OF_SCALARS else self._scale.meant(size)
        self._write(Packet(PacketKind.POSTED, self.rank, to, tag, num_bytes, due_s))
        if self._blocks(tag):
            due_s = self._arrival_of_sent(Envelope(self.rank, to, tag, size))
            self._clock.reach(due_s)
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
        """Start to receive, and call `then(message, arrives_s)` once the message has arrived."""
        self._expect(like, source=source, tag=tag, then=then)

    def join(self, *, tag: int) -> None:
        """Join the all-reduce with this tag, so that others may send to this rank."""
        self._write(Packet(PacketKind.JOINED, self.rank, 0, tag, 0.0, self._clock.now()))

    def close(self, *, error: BaseException | None = None) -> None:
        """Disconnect after the last message; with an `error`, end the whole job at once."""
        # Wakes the listening thread: `close` alone would leave it in `recv`.
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        if error is not None:
            self._transport.close(error=error)

    def _write(self, packet: Packet) -> None:
        with self._lock:  # threads of a rank share the stream, and packets must stay whole
            self._connection.sendall(packet.to_bytes())

    def _blocks(self, tag: int) -> bool:
        return self._blocking_s is not None and tag < NUM_MESSAGE_TAGS

    def _arrival_of_sent(self, envelope: Envelope) -> float:
        """Wait until the message that this rank has just posted arrives, and return when."""
        assert self._blocking_s is not None
        try:
            # One at a time: a rank that sends does nothing else.
            return self._sent.get(timeout=self._blocking_s)
        except Empty:
            raise envelope.late(waited_s=self._blocking_s) from None

    def _report_wait(self, source: int, tag: int) -> None:
        self._write(Packet(PacketKind.WAITS, source, self.rank, tag, 0.0, self._clock.now()))

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
        report = partial(self._report_wait, source, tag) if self._blocks(tag) else _nothing
        arrival = _Arrival(receive, envelope, self._clock, then, report=report)
        with self._lock:
            if not self._arrived[source, tag]:
                self._awaited[source, tag].append(arrival)
                return arrival
            # Arrived before it was asked for, as in MPI's queue of unexpected messages.
            due_s = self._arrived[source, tag].popleft()
        arrival.arrive(due_s)
        return arrival

    def _listen(self) -> None:
        """Handle the packets of the switch until the connection closes."""
        reader = PacketReader()
        while content := self._connection.recv(_READ_BYTES):
            for packet in reader.feed(content):
                if packet.kind == PacketKind.SENT:
                    self._sent.put(packet.due_s)
                else:
                    self._arrive(packet)

    def _arrive(self, packet: Packet) -> None:
        channel = (packet.source, packet.tag)
        with self._lock:
            if not self._awaited[channel]:
                self._arrived[channel].append(packet.due_s)
                return
            arrival = self._awaited[channel].popleft()
        # Outside of the lock: the callback of an arrival may send, which takes it.
        arrival.arrive(packet.due_s)


def _nothing() -> None:
    """Report nothing: this wait does not matter to the network."""


class _PacedSending:
    __slots__ = ("_due_s", "_sending")

    def __init__(self, sending: Sending, due_s: float) -> None:
        self._sending, self._due_s = sending, due_s

    def wait(self, *, timeout_s: float) -> float:
        self._sending.wait(timeout_s=timeout_s)
        return self._due_s


class _Arrival:
    """An incoming message: its payload, and its time of arrival."""

    __slots__ = ("_clock", "_due_s", "_envelope", "_event", "_receive", "_report", "_then")

    def __init__(
        self,
        receive: Callable[[], Receiving],
        envelope: Envelope,
        clock: VirtualClock,
        then: Then | None,
        *,
        report: Callable[[], None],
    ) -> None:
        self._receive, self._envelope = receive, envelope
        self._clock, self._then, self._report = clock, then, report
        self._event = Event()
        self._due_s = 0.0

    def arrive(self, due_s: float) -> None:
        """Set the time of arrival and wake up the waiting thread; called once."""
        self._due_s = due_s
        self._event.set()
        if self._then is not None:
            self._then(self, due_s)

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        self._report()
        if not self._event.wait(timeout_s):
            raise self._envelope.late(waited_s=timeout_s)
        array = self._receive().wait(timeout_s=timeout_s)
        self._clock.reach(self._due_s)
        return array
