"""The emulated network of all ranks of a machine: one thread, through which every message passes.

The simulator's own links carry the messages, with windows, overheads and shared NICs, so that both
mean the same by them; but their clock follows the real one. Payloads go over the transport as ever;
the switch is told of each, and tells its receiver when it has arrived::

    sender ── payload, over MPI ───────────────────────► receiver
      └─ posted at 2.00 s ─► switch ── arrives at 2.13 s ──┘

The switch stays a little behind the clock, lest it act before it has heard of all that happened
until then, and tells of an arrival as soon as it is certain, which is a latency before it or more.
So a rank may wake late by what it computes next, or by the latency, and nothing changes. What the
switch hears too late happens when it hears of it: see `Switch.lateness`.
"""

import socket
import time
from collections import defaultdict
from functools import partial
from math import inf
from pathlib import Path
from selectors import EVENT_READ, SelectSelector
from threading import Thread

from jaxpipe.comm.tags import ALL_REDUCE_TAG, GATHER_TAG, NUM_MESSAGE_TAGS
from jaxpipe.paced.protocol import NOTE_BYTES, Kind, Note, notes_of
from jaxpipe.paced.timing_error import TimingError, TimingErrors
from jaxpipe.paced.virtual_clock import Beat
from jaxpipe.simulate.engine.collectives import CONTROL, pairs
from jaxpipe.simulate.engine.event_queue import EventQueue
from jaxpipe.simulate.engine.link import Link
from jaxpipe.simulate.engine.message_costs import MessageCosts
from jaxpipe.simulate.engine.network import open_links
from jaxpipe.simulate.engine.step_model import StepModel

_BEHIND_S = 20e-3
_READ_BYTES = 2**16


class Switch:
    """Carries the messages of a job's ranks, once all of them have connected to `path`.

    `gathers` are the tags of the sums whose messages wait until their receiver has come.
    """

    def __init__(self, job: StepModel, path: Path, *, gathers: frozenset[int]) -> None:
        self._job = job
        self._gathers = gathers
        self._queue = EventQueue()
        self._links = open_links(
            self._queue, job.cluster, pairs(job), nic_efficiency=job.nic_efficiency
        )
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(job.num_ranks)
        self._stop, self._stopped = socket.socketpair()
        self._peers: dict[int, _Peer] = {}
        self._joined: dict[tuple[int, int], float] = {}
        self._held: defaultdict[tuple[int, int], list[Note]] = defaultdict(list)
        self._late = TimingErrors()
        self._thread: Thread | None = None

    @property
    def lateness(self) -> TimingError:
        """How much later than they happened things have happened to the network; emulated time."""
        return self._late.summary()

    def start(self, beat: Beat) -> None:
        """Begin to carry messages; all ranks have connected."""
        for _ in range(self._job.num_ranks):
            connection, _ = self._listener.accept()
            peer = _Peer(connection)
            self._peers[peer.rank] = peer
        self._thread = Thread(target=self._run, args=(beat,), name="switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, whatever is under way."""
        self._stop.close()
        if self._thread is not None:
            self._thread.join()
        for peer in self._peers.values():
            peer.close()
        self._listener.close()
        self._stopped.close()

    def _run(self, beat: Beat) -> None:
        with SelectSelector() as selector:
            selector.register(self._stopped, EVENT_READ)
            for peer in self._peers.values():
                selector.register(peer.connection, EVENT_READ, peer)
            while True:
                for key, _ in selector.select(self._patience_s(beat)):
                    if key.data is None:
                        return
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                self._queue.run(until_s=beat.now() - _BEHIND_S / beat.stretch)
                for peer in self._peers.values():
                    peer.flush()

    def _patience_s(self, beat: Beat) -> float | None:
        """Return how long nothing happens if nobody says anything."""
        if self._queue.next_s == inf:
            return None
        return max(0.0, beat.real(self._queue.next_s) + _BEHIND_S - time.perf_counter())

    def _hear(self, peer: "_Peer") -> bool:
        """Take in what a rank says; return whether it may say more."""
        heard = peer.read()
        if heard is None:
            return False
        for note in heard:
            due_s = max(note.due_s, self._queue.now_s)
            self._late.add(due_s - note.due_s)
            self._queue.at(due_s, self._join if note.kind == Kind.JOINED else self._post, note)
        return True

    def _post(self, note: Note) -> None:
        receiver = (note.to, note.tag)
        if note.tag in self._gathers and receiver not in self._joined:
            self._held[receiver].append(note)
            return
        self._link(note).send(note.num_bytes, _nothing, foreseen=partial(self._foresee, note))

    def _join(self, note: Note) -> None:
        self._joined[note.source, note.tag] = self._queue.now_s
        for held in self._held.pop((note.source, note.tag), ()):
            self._post(held)

    def _foresee(self, note: Note, arrives_s: float) -> None:
        self._peers[note.to].tell(note._replace(kind=Kind.ARRIVES, due_s=arrives_s))

    def _link(self, note: Note) -> Link:
        pair = (self._job.device(note.source), self._job.device(note.to))
        return self._links[self._wire(note.tag)][pair]

    def _wire(self, tag: int) -> MessageCosts:
        if tag < NUM_MESSAGE_TAGS:
            return self._job.messages
        return self._job.gradients if ALL_REDUCE_TAG <= tag < GATHER_TAG else CONTROL


def _nothing() -> None:
    """Who waits for a message knows already when it arrives."""


class _Peer:
    """The connection to one rank, and what is still to be told it."""

    __slots__ = ("_heard", "_told", "connection", "rank")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        (hello,) = notes_of(connection.recv(NOTE_BYTES, socket.MSG_WAITALL))
        assert hello.kind == Kind.HELLO, hello
        self.rank = hello.source
        self._heard, self._told = bytearray(), bytearray()

    def read(self) -> list[Note] | None:
        """Return what has been said meanwhile, or None once the rank has gone."""
        content = self.connection.recv(_READ_BYTES)
        if not content:
            return None
        self._heard += content
        whole = len(self._heard) // NOTE_BYTES * NOTE_BYTES
        notes = list(notes_of(self._heard[:whole]))
        del self._heard[:whole]
        return notes

    def tell(self, note: Note) -> None:
        """Keep a note until the next `flush`."""
        self._told += note.to_bytes()

    def flush(self) -> None:
        """Let the rank know."""
        if self._told:
            self.connection.sendall(self._told)
            self._told.clear()

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
