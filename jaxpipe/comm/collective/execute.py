"""Carry out the steps of one rank over any transport.

Receives are posted ahead of the steps that wait for them, so many bytes from each rank that links
stay busy, and so few that the memory of what has been added is used again. Sends read the arrays
where they are: a part that is still being sent is waited for before it is written. Others have
always received it by then, or could not have sent what is to be written; so this waits for no step
of anyone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from jaxpipe.collective.shards import Part
from jaxpipe.collective.step import Act, Step
from jaxpipe.comm.buffer import aligned_empty, num_bytes_of
from jaxpipe.comm.collective.wire_format import Format, sum_dtype
from jaxpipe.comm.transport import Receiving, Sending, Transport

AHEAD_BYTES = 2**24
"""Of receives posted from one rank: an eighth of a second at 1 Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What near and far messages look like."""

    near: Format
    far: Format

    def of(self, step: Step) -> Format:
        """Return the format of the step's message."""
        return self.far if step.is_far else self.near


class Execution:
    """The steps of one rank on `own`, a flat array, which they only read.

    Results go to `total`, by default new memory like `own` in its `sum_dtype`; it may be `own` if
    no step writes what another reads as brought. Each message may take `timeout_s`.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """

    def __init__(
        self,
        transport: Transport,
        own: np.ndarray,
        formats: Formats,
        *,
        tag: int,
        timeout_s: float,
        total: np.ndarray | None = None,
    ):
        self._transport, self._formats = transport, formats
        self._tag, self._timeout_s = tag, timeout_s
        self._own = own
        self._total = aligned_empty(own.shape, sum_dtype(own.dtype)) if total is None else total
        self._outgoing = _Outgoing()
        self._settled: dict[Part, np.ndarray] = {}

    def run(self, steps: Sequence[Step]) -> np.ndarray:
        """Carry out the steps, in order, and return the total."""
        incoming = _Incoming(self._transport, steps, self._formats, tag=self._tag)
        acts = {Act.ADD: self._add, Act.TAKE: self._take}
        for step in steps:
            if step.act is Act.SEND:
                self._send(step)
            elif step.act is Act.SETTLE:
                self._settle(step)
            else:
                message = incoming.next(source=step.peer, timeout_s=self._timeout_s)
                values = self._formats.of(step).decode(message, size=step.part.size)
                self._outgoing.finish(step.part, timeout_s=self._timeout_s)
                acts[step.act](step, values)
        self._outgoing.finish_all(timeout_s=self._timeout_s)
        return self._total

    def _add(self, step: Step, values: np.ndarray) -> None:
        place = self._place(step)
        with np.errstate(over="ignore", invalid="ignore"):  # who takes the total sees it there
            values = values.astype(place.dtype, copy=False)  # faster than adding across dtypes
            np.add(self._source(step), values, out=place, dtype=place.dtype)

    def _take(self, step: Step, values: np.ndarray) -> None:
        self._place(step)[...] = values

    def _send(self, step: Step) -> None:
        message = self._settled.get(step.part) if step.is_far else None
        if message is None:
            message = self._formats.of(step).encode(self._source(step), start=step.part.start)
        sending = self._transport.send(message, to=step.peer, tag=self._tag)
        reads_total = np.may_share_memory(message, self._total)
        self._outgoing.add(sending, reads=step.part if reads_total else None)

    def _settle(self, step: Step) -> None:
        form, place, source = self._formats.of(step), self._place(step), self._source(step)
        message = form.encode(source, start=step.part.start)
        if np.may_share_memory(message, place):
            return
        if step.is_far:
            self._settled[step.part] = message
        self._outgoing.finish(step.part, timeout_s=self._timeout_s)
        place[...] = form.decode(message, size=step.part.size)

    def _place(self, step: Step) -> np.ndarray:
        return self._total[step.part.start : step.part.stop]

    def _source(self, step: Step) -> np.ndarray:
        array = self._own if step.is_own else self._total
        return array[step.part.start : step.part.stop]


class _Incoming:
    """The messages that the steps wait for, posted ahead: for each source in the steps' order.

    So a slow link is busy while the messages of fast ones are added.
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
        """Return the next message of this source, and post more."""
        messages = self._sources[source]
        message = np.asarray(messages.posted[0].wait(timeout_s=timeout_s))
        messages.posted.popleft()
        messages.num_bytes -= message.nbytes
        messages.fill(self._post)
        return message


@dataclass(slots=True)
class _Source:
    """The receives from one rank; `num_bytes` are posted."""

    unposted: deque[Step] = field(default_factory=deque)
    posted: deque[Receiving] = field(default_factory=deque)
    num_bytes: int = 0

    def fill(self, post: Callable[[Step], tuple[Receiving, int]]) -> None:
        """Post what may be posted."""
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
    """The messages on their way out: those that read the total, and the others."""

    from_total: list[tuple[Part, Sending]] = field(default_factory=list)
    others: list[Sending] = field(default_factory=list)

    def add(self, sending: Sending, *, reads: Part | None) -> None:
        """Take on a message that reads this part of the total, or none of it."""
        if reads is None:
            self.others.append(sending)
        else:
            self.from_total.append((reads, sending))

    def finish(self, part: Part, *, timeout_s: float) -> None:
        """Wait until nothing reads this part of the total."""
        if not any(_overlap(part, other) for other, _ in self.from_total):
            return
        for other, sending in self.from_total:
            if _overlap(part, other):
                sending.wait(timeout_s=timeout_s)
        self.from_total = [each for each in self.from_total if not _overlap(part, each[0])]

    def finish_all(self, *, timeout_s: float) -> None:
        """Wait until all messages have left."""
        for sending in (*self.others, *(sending for _, sending in self.from_total)):
            sending.wait(timeout_s=timeout_s)


def _overlap(one: Part, other: Part) -> bool:
    return one.start < other.stop and other.start < one.stop
