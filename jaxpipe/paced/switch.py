"""Switch: the emulated network of all ranks of a machine, one thread that times every message.

The links are those of `jaxpipe.network`, as in the simulator, with windows, overheads and shared
NICs; but their clock follows the real one. Payloads travel over the inner transport; the switch
receives a packet for each, and sends one to the receiver with the time of arrival::

    sender ── payload, over MPI ───────────────────────► receiver
      └─ posted at 2.00 s ─► switch ── arrives at 2.13 s ──┘

The switch stays a little behind the clock, so that it does not act before it has received all
packets of that time, and reports an arrival as soon as it is certain, one latency before it or
earlier. So a rank may wake up late by the length of its next compute, or by the latency, without
any effect. A packet that reaches the switch too late takes effect when it is read: see
`Switch.lateness`.

If messages between stages block (`StepModel.blocking`), the ranks also say when they wait, and a
message is sent once both of its ranks do.
"""

import socket
import time
from collections import Counter, defaultdict
from functools import partial
from itertools import permutations
from math import inf
from pathlib import Path
from selectors import EVENT_READ, SelectSelector
from threading import Thread

from jaxpipe.comm.tags import ALL_REDUCE_TAG, GATHER_TAG, NUM_MESSAGE_TAGS
from jaxpipe.network import EventQueue, Link, MessageCosts, open_links
from jaxpipe.paced.blocked_messages import BlockedMessages
from jaxpipe.paced.protocol import PACKET_BYTES, Packet, PacketKind, PacketReader
from jaxpipe.paced.timing_error import TimingError, TimingErrors
from jaxpipe.paced.virtual_clock import TimeBase
from jaxpipe.simulate.engine.running_collectives import CONTROL, pairs
from jaxpipe.simulate.engine.step_model import StepModel

_BEHIND_S = 20e-3
"""Real seconds that the switch stays behind: packets take no longer on a machine that keeps up."""
_READ_BYTES = 2**16


class Switch:
    """Times the messages of a job's ranks, once all of them have connected to `path`.

    `gathers` are the tags of the all-reduces whose messages wait until their receiver has joined
    them as often as their sender has. With `connects_all` any rank may send gradients to any other,
    without it those that do in the job.
    """

    def __init__(
        self, job: StepModel, path: Path, *, gathers: frozenset[int], connects_all: bool = False
    ) -> None:
        self._job = job
        self._gathers = gathers
        self._queue = EventQueue()
        joined = pairs(job)
        if connects_all:
            devices = map(job.device, range(job.num_ranks))
            joined.setdefault(job.gradients, set()).update(permutations(devices, 2))
        self._links = open_links(
            self._queue, job.cluster, joined, nic_efficiency=job.nic_efficiency
        )
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(job.num_ranks)
        # A pair whose closing wakes `select`: threads cannot interrupt it otherwise.
        self._stop, self._stopped = socket.socketpair()
        self._peers: dict[int, _Peer] = {}
        self._joined: Counter[tuple[int, int]] = Counter()
        self._early: defaultdict[tuple[int, int], list[Packet]] = defaultdict(list)
        self._late = TimingErrors()
        self._blocked = BlockedMessages(job.num_ranks) if job.blocking else None
        self._thread: Thread | None = None

    @property
    def lateness(self) -> TimingError:
        """How late packets have reached the emulated network, in emulated seconds."""
        return self._late.summary()

    def start(self, base: TimeBase) -> None:
        """Accept the connections of all ranks, which have connected, and start the thread."""
        for _ in range(self._job.num_ranks):
            connection, _ = self._listener.accept()
            peer = _Peer(connection)
            self._peers[peer.rank] = peer
        self._thread = Thread(target=self._run, args=(base,), name="switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread at once, also with messages in flight."""
        # Reads as an end of file on the other end.
        self._stop.close()
        if self._thread is not None:
            self._thread.join()
        for peer in self._peers.values():
            peer.close()
        self._listener.close()
        self._stopped.close()

    def _run(self, base: TimeBase) -> None:
        with SelectSelector() as selector:
            selector.register(self._stopped, EVENT_READ)
            for peer in self._peers.values():
                selector.register(peer.connection, EVENT_READ, peer)
            while True:
                for key, _ in selector.select(self._timeout_s(base)):
                    if key.data is None:
                        return
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                # `_BEHIND_S` is real, the queue's time emulated.
                self._queue.run(until_s=base.now() - _BEHIND_S / base.stretch)
                # After the events: one write for all packets to a rank.
                for peer in self._peers.values():
                    peer.flush()

    def _timeout_s(self, base: TimeBase) -> float | None:
        """Return the real seconds until the next event; None if there is none."""
        if self._queue.next_s == inf:
            return None
        return max(0.0, base.real(self._queue.next_s) + _BEHIND_S - time.perf_counter())

    def _read(self, peer: "_Peer") -> bool:
        """Schedule the packets that a rank has sent; return False once it has closed."""
        packets = peer.read()
        if packets is None:
            return False
        for packet in packets:
            # The queue's time cannot go back: a late packet is served now.
            due_s = max(packet.due_s, self._queue.now_s)
            self._late.add(due_s - packet.due_s)
            self._queue.at(due_s, self._handle, packet)
        return True

    def _handle(self, packet: Packet) -> None:
        match packet.kind:
            case PacketKind.JOINED:
                self._join(packet)
            case PacketKind.WAITS:
                assert self._blocked is not None, packet
                self._blocked.wait(packet)
            case _:
                self._post(packet)

    def _post(self, packet: Packet) -> None:
        sender, receiver = (packet.source, packet.tag), (packet.to, packet.tag)
        # A rank that has not joined, in this step, has posted no receive: messages to it wait.
        if packet.tag in self._gathers and self._joined[receiver] < self._joined[sender]:
            self._early[receiver].append(packet)
            return
        send = partial(
            self._link(packet).send, packet.num_bytes, on_timed=partial(self._report, packet)
        )
        if self._blocked is not None and packet.tag < NUM_MESSAGE_TAGS:
            self._blocked.post(packet, send)
        else:
            send(_ignore)

    def _join(self, packet: Packet) -> None:
        self._joined[packet.source, packet.tag] += 1
        for early in self._early.pop((packet.source, packet.tag), ()):
            self._post(early)

    def _report(self, packet: Packet, _leaves_s: float, arrives_s: float) -> None:
        self._peers[packet.to].write(packet._replace(kind=PacketKind.ARRIVES, due_s=arrives_s))
        if self._blocked is not None and packet.tag < NUM_MESSAGE_TAGS:
            self._peers[packet.source].write(packet._replace(kind=PacketKind.SENT, due_s=arrives_s))

    def _link(self, packet: Packet) -> Link:
        pair = (self._job.device(packet.source), self._job.device(packet.to))
        return self._links[self._costs(packet.tag)][pair]

    def _costs(self, tag: int) -> MessageCosts:
        if tag < NUM_MESSAGE_TAGS:
            return self._job.messages
        return self._job.gradients if ALL_REDUCE_TAG <= tag < GATHER_TAG else CONTROL


def _ignore() -> None:
    """Do nothing on arrival: the receiver has its packet since the time was certain."""


class _Peer:
    """The connection to one rank; packets to it are buffered until `flush`."""

    __slots__ = ("_outgoing", "_reader", "connection", "rank")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader, self._outgoing = PacketReader(), bytearray()
        # MSG_WAITALL: this first read must not end inside the packet.
        (hello,) = self._reader.feed(connection.recv(PACKET_BYTES, socket.MSG_WAITALL))
        assert hello.kind == PacketKind.HELLO, hello
        self.rank = hello.source

    def read(self) -> list[Packet] | None:
        """Return the packets that have arrived, or None once the rank has closed."""
        content = self.connection.recv(_READ_BYTES)
        return self._reader.feed(content) if content else None

    def write(self, packet: Packet) -> None:
        """Buffer a packet until the next `flush`."""
        self._outgoing += packet.to_bytes()

    def flush(self) -> None:
        """Send the buffered packets."""
        if self._outgoing:
            self.connection.sendall(self._outgoing)
            self._outgoing.clear()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
