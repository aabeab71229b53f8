"""Executor of collectives: runs the steps of one rank over any transport.

Receives are posted ahead of the steps that wait for them: enough bytes from each rank to keep links
busy, and few enough to reuse the memory of messages that have been added. Sends read the arrays in
place: before a part is written, its pending sends are waited for. This cannot deadlock: the peer
has received that part already, or it could not have sent the message that overwrites it.

An inner rank of a tree passes sums up in one thread, and totals down in another. In one thread,
which waits for messages in the order of the steps, the first total would come down only after the
last sum had gone up: an all-reduce took 1.25 to 1.6 times as long (chains of 4 and 16 paced ranks,
trees of 16, chunks of 32 MiB).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread

import numpy as np

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.step import Act, Step, reduce_and_broadcast
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.wire_format import Format, sum_dtype
from jaxpipe.comm.transport import Receiving, Sending, Transport
from jaxpipe.errors import DeadlineError, TransportError

AHEAD_BYTES = 2**24
"""Of receives posted from one rank: an eighth of a second at 1 Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The formats of near and of far messages."""

    near: Format
    far: Format

    def of(self, step: Step) -> Format:
        """Return the format of the step's message."""
        return self.far if step.is_far else self.near


class Execution:
    """The steps of one rank on `vector`, a flat array, which they only read.

    Results go to `total`, by default new memory like `vector` in its `sum_dtype`; it may be
    `vector` if no step writes what another reads as brought. Each message may take `timeout_s`.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """

    def __init__(
        self,
        transport: Transport,
        vector: np.ndarray,
        formats: Formats,
        *,
        tag: int,
        timeout_s: float,
        total: np.ndarray | None = None,
    ):
        self._transport, self._formats = transport, formats
        self._tag, self._timeout_s = tag, timeout_s
        self._own = vector
        self._total = (
            aligned_empty(vector.shape, sum_dtype(vector.dtype)) if total is None else total
        )
        self._outgoing = _Outgoing()
        self._settled: dict[ElementRange, np.ndarray] = {}

    def run(self, steps: Sequence[Step]) -> np.ndarray:
        """Execute the steps and return the total."""
        reduction, broadcast = reduce_and_broadcast(steps)
        if broadcast:
            pending = self._begin(reduction)
            try:
                self._execute(broadcast)  # in the thread of the caller: it ends last
            except (DeadlineError, TransportError):
                # An error of the reduction is the cause: without its sums, no total comes.
                if pending.done():
                    pending.result()
                raise
            pending.result()
        else:
            self._execute(reduction)
        # The caller may change its array once this returns, and some sends read it.
        self._outgoing.finish_all(timeout_s=self._timeout_s)
        return self._total

    def _begin(self, steps: Sequence[Step]) -> Future[None]:
        """Execute the steps in a thread of their own."""
        future: Future[None] = Future()

        def work() -> None:
            try:
                future.set_result(self._execute(steps))
            except BaseException as error:  # raised by `result`
                future.set_exception(error)

        # In the context of the caller: some transports keep the time of each thread in it.
        run = partial(copy_context().run, work)
        Thread(target=run, name=f"steps of rank {self._transport.rank}", daemon=True).start()
        return future

    def _execute(self, steps: Sequence[Step]) -> None:
        """Execute the steps in order."""
        incoming = _Incoming(self._transport, steps, self._formats, tag=self._tag)
        acts = {Act.ADD: self._add, Act.TAKE: self._take}
        for step in steps:
            if step.act is Act.SEND:
                self._send(step)
            elif step.act is Act.SETTLE:
                self._settle(step)
            else:
                # Decoded before older sends are waited for, which hides their last bytes.
                message = incoming.next(source=step.peer, timeout_s=self._timeout_s)
                values = self._formats.of(step).decode(message, size=step.part.size)
                self._outgoing.finish(step.part, timeout_s=self._timeout_s)
                acts[step.act](step, values)

    def _add(self, step: Step, values: np.ndarray) -> None:
        target = self._target(step)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller sees it in the total
            values = values.astype(target.dtype, copy=False)  # faster than adding mixed dtypes
            np.add(self._source(step), values, out=target, dtype=target.dtype)

    def _take(self, step: Step, values: np.ndarray) -> None:
        self._target(step)[...] = values

    def _send(self, step: Step) -> None:
        message = self._settled.get(step.part) if step.is_far else None
        if message is None:
            message = self._formats.of(step).encode(self._source(step), start=step.part.start)
        send = partial(self._transport.send, message, to=step.peer, tag=self._tag)
        # A format without a copy sends the memory of the total itself.
        reads_total = np.may_share_memory(message, self._total)
        self._outgoing.begin(send, reads=step.part if reads_total else None)

    def _settle(self, step: Step) -> None:
        form, target, source = self._formats.of(step), self._target(step), self._source(step)
        message = form.encode(source, start=step.part.start)
        if np.may_share_memory(message, target):
            return  # the format changes nothing
        if step.is_far:
            # Sent as it is: encoding the part again would add the codec's error feedback twice.
            self._settled[step.part] = message
        # Rounded here as the peers will decode it, so that all ranks have the same bits.
        self._outgoing.finish(step.part, timeout_s=self._timeout_s)
        target[...] = form.decode(message, size=step.part.size)

    def _target(self, step: Step) -> np.ndarray:
        return self._total[step.part.start : step.part.stop]

    def _source(self, step: Step) -> np.ndarray:
        array = self._own if step.is_own else self._total
        return array[step.part.start : step.part.stop]


class _Incoming:
    """The receives of the steps, posted ahead: for each source in the order of its steps.

    So a slow link stays busy while messages of fast ones are added.
    """

    def __init__(self, transport: Transport, steps: Iterable[Step], formats: Formats, *, tag: int):
        self._sources: dict[int, _Source] = {}
        self._post = partial(_posted, transport, formats, tag=tag)
        for step in steps:
            if step.act in (Act.ADD, Act.TAKE):
                self._sources.setdefault(step.peer, _Source()).unposted.append(step)
        for source in self._sources.values():
            source.fill(self._post)

    def next(self, *, source: int, timeout_s: float) -> np.ndarray:
        """Wait for the next message of this source, return it, and post more receives."""
        messages = self._sources[source]
        message = np.asarray(messages.posted[0].wait(timeout_s=timeout_s))
        messages.posted.popleft()
        messages.num_bytes -= message.nbytes
        messages.fill(self._post)
        return message


@dataclass(slots=True)
class _Source:
    """The receives from one rank; `num_bytes` is the size of the posted ones."""

    unposted: deque[Step] = field(default_factory=deque)
    posted: deque[Receiving] = field(default_factory=deque)
    num_bytes: int = 0

    def fill(self, post: Callable[[Step], tuple[Receiving, int]]) -> None:
        """Post receives up to `AHEAD_BYTES`."""
        while self.unposted and self.num_bytes < AHEAD_BYTES:
            receiving, num_bytes = post(self.unposted.popleft())
            self.posted.append(receiving)
            self.num_bytes += num_bytes


def _posted(
    transport: Transport, formats: Formats, step: Step, *, tag: int
) -> tuple[Receiving, int]:
    """Post the receive of a step, and return it with its bytes."""
    like = formats.of(step).like(size=step.part.size)
    return transport.receive(like, source=step.peer, tag=tag), num_bytes_of(like)


@dataclass(slots=True)
class _Outgoing:
    """The pending sends: those that read the total, and the others. Two threads may add to them."""

    from_total: list[tuple[ElementRange, Sending]] = field(default_factory=list)
    others: list[Sending] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def begin(self, send: Callable[[], Sending], *, reads: ElementRange | None) -> None:
        """Send what is this part of the total, or none of it."""
        # Its answer may arrive before `send` returns, and would be written over this part.
        with self.lock:
            if reads is None:
                self.others.append(send())
            else:
                self.from_total.append((reads, send()))

    def finish(self, part: ElementRange, *, timeout_s: float) -> None:
        """Wait for the sends that read this part of the total."""
        with self.lock:
            reading = [waiting for waiting in self.from_total if _overlap(part, waiting[0])]
            if reading:
                self.from_total = [
                    waiting for waiting in self.from_total if not _overlap(part, waiting[0])
                ]
        # Without the lock, which the other thread needs in order to send.
        for _, sending in reading:
            sending.wait(timeout_s=timeout_s)

    def finish_all(self, *, timeout_s: float) -> None:
        """Wait for all sends."""
        for sending in (*self.others, *(sending for _, sending in self.from_total)):
            sending.wait(timeout_s=timeout_s)


def _overlap(one: ElementRange, other: ElementRange) -> bool:
    return one.start < other.stop and other.start < one.stop
