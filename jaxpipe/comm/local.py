"""Transport between the threads of one process, each of them a rank, for notebooks and tests.

Every message is copied when it is sent. All ranks share one mailbox, guarded by one condition: it
is simple rather than fast.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Condition, Event, Thread
from typing import TypeVar

import jax
import numpy as np

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.comm.buffer import as_bytes, num_bytes_of
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.message_timing import Times
from jaxpipe.comm.transport import HostOrDeviceArray, Transport
from jaxpipe.errors import TransportError, one_line

Result = TypeVar("Result")


@dataclass(slots=True)
class _Channel:
    """The messages of one source, receiver and tag: the n-th sent is for the n-th receive.

    Each has the time at which it was sent.
    """

    num_sent: int = 0
    num_posted: int = 0
    messages: dict[int, tuple[np.ndarray, float]] = field(default_factory=dict)


class LocalWorld:
    """The ranks `0 .. num_ranks - 1` of one process, and their mailbox.

    >>> world = LocalWorld(2)
    >>> receiving = world.transport(1).receive(
    ...     jax.ShapeDtypeStruct((2,), np.int32), source=0, tag=0)
    >>> sending = world.transport(0).send(np.array([3, 4], np.int32), to=1, tag=0)
    >>> receiving.wait(timeout_s=1.0)
    array([3, 4], dtype=int32)
    """

    def __init__(self, num_ranks: int):
        assert num_ranks > 0, num_ranks
        self.num_ranks = num_ranks
        self._changed = Condition()
        self._channels: defaultdict[tuple[int, int, int], _Channel] = defaultdict(_Channel)
        self._first_error: tuple[int, BaseException] | None = None

    @property
    def error(self) -> BaseException | None:
        """The error that ended the world, if one did."""
        return self._first_error[1] if self._first_error else None

    def transport(self, rank: int) -> "LocalTransport":
        """Return the transport of one rank."""
        return LocalTransport(self, rank)

    def abort(self, rank: int, error: BaseException) -> None:
        """Make every wait of every rank raise; they all name the first error."""
        with self._changed:
            # Later errors are mostly consequences: the ranks that wait for the failed one.
            self._first_error = self._first_error or (rank, error)
            self._changed.notify_all()

    def raise_if_aborted(self) -> None:
        """Raise a `TransportError` that names the first error, if there is one."""
        if self._first_error:
            raise TransportError(
                f"cannot continue: the run was ended by {one_line(*self._first_error)}"
            )

    def put(self, envelope: Envelope, message: np.ndarray) -> None:
        """Append a message, uint8 of shape (num_bytes,), to its channel."""
        with self._changed:
            channel = self._channels[envelope.channel]
            channel.messages[channel.num_sent] = (message, time.perf_counter())
            channel.num_sent += 1
            self._changed.notify_all()

    def post(self, envelope: Envelope) -> int:
        """Return the position of a new receive in its channel."""
        with self._changed:
            channel = self._channels[envelope.channel]
            channel.num_posted += 1
            return channel.num_posted - 1

    def take(
        self, envelope: Envelope, *, position: int, timeout_s: float
    ) -> tuple[np.ndarray, float]:
        """Wait for the message at this position of the channel; return its bytes and its time.

        Raises:
            DeadlineError: it did not come within `timeout_s`.
            TransportError: a rank aborted the world.
        """
        with self._changed:
            messages = self._channels[envelope.channel].messages
            self._changed.wait_for(lambda: position in messages or self._first_error, timeout_s)
            # Before the deadline: a rank that was aborted has not timed out.
            self.raise_if_aborted()
            if position not in messages:
                raise envelope.late(waited_s=timeout_s)
            return messages.pop(position)


@dataclass(frozen=True, slots=True)
class _LocalSending:
    world: LocalWorld
    timing: Times

    def wait(self, *, timeout_s: float) -> float:  # noqa: ARG002  the message was copied by `send`
        self.world.raise_if_aborted()
        return self.timing.over_s


@dataclass(frozen=True, slots=True)
class _LocalReceiving:
    world: LocalWorld
    envelope: Envelope
    position: int
    like: jax.ShapeDtypeStruct
    timing: Times

    def wait(self, *, timeout_s: float) -> np.ndarray:
        message, sent_s = self.world.take(
            self.envelope, position=self.position, timeout_s=timeout_s
        )
        # A message that was sent before its receive was posted has arrived with the post.
        self.timing.over_s = max(sent_s, self.timing.started_s)
        if message.size != self.envelope.num_bytes:
            raise TransportError(f"got {message.size} bytes instead of {self.envelope}")
        return message.view(self.like.dtype).reshape(self.like.shape)


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """One rank of a `LocalWorld`; `send` waits until a jax array is computed, then copies it."""

    world: LocalWorld
    rank: int

    def __post_init__(self):
        assert 0 <= self.rank < self.num_ranks, (self.rank, self.num_ranks)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.world.num_ranks

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> _LocalSending:
        """Copy `array` into the mailbox of the rank `to`."""
        assert to < self.num_ranks, (to, self.num_ranks)
        # Copied, since the sender may change its array as soon as `wait` returns.
        view = as_bytes(array)
        started_s = time.perf_counter()
        message = aligned_empty(view.shape, np.uint8)
        message[:] = view
        self.world.put(Envelope(self.rank, to, tag, view.size), message)
        return _LocalSending(self.world, Times(started_s, time.perf_counter()))

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> _LocalReceiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        assert source < self.num_ranks, (source, self.num_ranks)
        envelope = Envelope(source, self.rank, tag, num_bytes_of(like))
        position, times = self.world.post(envelope), Times(time.perf_counter())
        return _LocalReceiving(self.world, envelope, position, like, times)

    def close(self, *, error: BaseException | None = None) -> None:
        """End this rank's part; with an `error`, every wait of every rank raises at once."""
        if error is not None:
            self.world.abort(self.rank, error)


def run_ranks(
    num_ranks: int,
    work: Callable[[Transport], Result],
    *,
    on_interrupt: Callable[[], object] | None = None,
) -> list[Result]:
    """Run `work` once per rank, each in its own thread, and return the results by rank.

    The first error of any rank ends the others, and is raised here as it was raised there. Threads
    cannot be killed: with `on_interrupt`, the first Ctrl-C calls it, and `KeyboardInterrupt` is
    raised once all ranks have ended; a second Ctrl-C raises it at once.

    >>> run_ranks(3, lambda transport: transport.rank**2)
    [0, 1, 4]
    """
    world = LocalWorld(num_ranks)
    results: dict[int, Result] = {}
    # Waited for instead of the threads: until Python 3.13, a `join` that Ctrl-C interrupts may
    # leave the thread marked as ended while it runs.
    ended = [Event() for _ in range(num_ranks)]

    def run(rank: int) -> None:
        transport = world.transport(rank)
        try:
            results[rank] = work(transport)
        except BaseException as error:
            transport.close(error=error)
        else:
            transport.close()
        finally:
            ended[rank].set()

    threads = [
        # Daemons: a rank that hangs must not keep the process from ending.
        Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(num_ranks)
    ]
    for thread in threads:
        thread.start()
    try:
        _wait_for(ended)
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
        _wait_for(ended)
        raise
    for thread in threads:
        thread.join()
    if world.error is not None:
        raise world.error
    return [results[rank] for rank in range(num_ranks)]


def _wait_for(ended: Iterable[Event]) -> None:
    """Wait for all ranks, without a deadline: every wait of theirs has one."""
    for future in ended:
        future.wait()
