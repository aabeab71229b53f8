"""Asynchronous all-reduces: those of one tag run in one thread, in the order of `begin`.

::

    compute thread   backward  backward  begin A  backward  begin B  ...  wait A  wait B  update
    thread of tag A                      └── all-reduce ────────┘
    thread of tag B                                         └── all-reduce ─┘

A bucket begins when its last backward has been dispatched, and overlaps with the remaining ones.
Tags have threads of their own because a small all-reduce over a far link is all latency: it must
not wait for a large one that began before it.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.sync_tree import SyncTree
from jaxpipe.comm.collective.all_reduce import all_reduce, all_reduce_with_feedback
from jaxpipe.comm.collective.wire_format import WireFormat
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.errors import DeadlineError

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)
_MovedT_co = TypeVar("_MovedT_co", covariant=True)

_LIBRARY = -1  # no tag is negative


@runtime_checkable
class AllReduceHandle(Protocol[ArrayT]):
    """An all-reduce in progress; the array must not be changed before it is complete."""

    @property
    def future(self) -> Future[ArrayT]:
        """The future of the sum."""
        ...

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum.

        Raises:
            DeadlineError: it is not complete, and no message has arrived for `timeout_s`.
            TransportError: a message of it or of an earlier one with its tag could not be moved.
        """
        ...


@runtime_checkable
class AllReducer(Protocol):
    """Begins the all-reduces of one rank; `errors[tag]` is the accumulated error of their codec."""

    errors: dict[int, np.ndarray]

    def begin(
        self,
        array: ArrayT,
        tree: SyncTree,
        *,
        tag: int,
        timeout_s: float,
        algorithm: AllReduceKind,
        wire: WireFormat | None,
    ) -> AllReduceHandle[ArrayT]:
        """Begin the all-reduce of `array` over the ranks of `tree`, and return at once."""
        ...

    def close(self, *, timeout_s: float) -> None:
        """End once all of them are complete.

        Raises:
            DeadlineError: they are not after `timeout_s`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PendingAllReduce(Generic[ArrayT]):
    """An all-reduce in progress; the array must not be changed before it is complete.

    `num_moved` returns how many messages the all-reduces of this rank have moved so far.
    """

    future: Future[ArrayT]
    tag: int
    num_moved: Callable[[], int]

    @property
    def is_over(self) -> bool:
        """Whether `wait` returns, or raises, at once."""
        return self.future.done()

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum; over a slow link it may take longer than `timeout_s`.

        Raises:
            DeadlineError: it is not complete, and no message has been moved for `timeout_s`; or a
                message of it or of an earlier one timed out.
            TransportError: a message of it or of an earlier one could not be moved.
        """
        num_moved = self.num_moved()
        while not wait([self.future], timeout_s).done:
            if self.num_moved() == num_moved:
                raise DeadlineError(
                    f"timed out after {timeout_s:.1f} s without a message, waiting for the "
                    f"all-reduce with tag {self.tag}"
                )
            num_moved = self.num_moved()
        return self.future.result()


class _MovedMessages(ForwardingTransport):
    """Forwards all calls; `num_moved` grows with each message for which a wait has ended.

    Native all-reduces of the wrapped transport move no messages here.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.num_moved = 0

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to`."""
        return _Counted(self._transport.send(array, to=to, tag=tag), self)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        return _Counted(self._transport.receive(like, source=source, tag=tag), self)


class _Moving(Protocol[_MovedT_co]):
    """A message on its way, in or out."""

    def wait(self, *, timeout_s: float) -> _MovedT_co: ...


@dataclass(frozen=True, slots=True)
class _Counted(Generic[_MovedT_co]):
    message: _Moving[_MovedT_co]
    counter: _MovedMessages

    def wait(self, *, timeout_s: float) -> _MovedT_co:
        moved = self.message.wait(timeout_s=timeout_s)
        self.counter.num_moved += 1  # threads may count one together, but never none
        return moved


class AsyncAllReduce:
    """Begins all-reduces of one rank; all ranks of a tree begin those of a tag in the same order.

    All-reduces of different tags run concurrently; but native ones run in the order of `begin`,
    since MPI and NCCL match them by that order alone.

    A jax array may still be computed when its all-reduce begins: the thread waits for it. With
    `feeds_back`, a hierarchical all-reduce with a codec adds the codec's errors of earlier ones of
    the same tag: `errors[tag]`, which may be saved and restored while none is in progress.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     worker = AsyncAllReduce(transport)
    ...     mine = np.ones(2)
    ...     both = [worker.begin(mine, (0, 1), tag=tag, timeout_s=1.0) for tag in (0, 1)]
    ...     sums = [reducing.wait(timeout_s=1.0) for reducing in both]
    ...     worker.close(timeout_s=1.0)
    ...     return sums
    >>> run_ranks(2, work)[0]
    [array([2., 2.]), array([2., 2.])]
    """

    def __init__(self, transport: Transport, *, feeds_back: bool = False):
        self._transport = _MovedMessages(transport)
        self._threads: dict[int, SerialExecutor] = {}
        self._feeds_back = feeds_back
        self.errors: dict[int, np.ndarray] = {}

    def begin(
        self,
        array: ArrayT,
        tree: SyncTree,
        *,
        tag: int,
        timeout_s: float,
        algorithm: AllReduceKind = AllReduceKind.TREE,
        wire: WireFormat | None = None,
    ) -> PendingAllReduce[ArrayT]:
        """Begin the all-reduce of `array`, as `all_reduce` does, and return at once.

        Each message may take `timeout_s`, which includes the wait for the last rank to begin; all
        of them together may take longer.
        """
        if (
            self._feeds_back
            and algorithm.facts.has_far_messages
            and wire is not None
            and wire.far is not None
        ):
            work = partial(self._with_feedback, array, tree, wire, tag=tag, timeout_s=timeout_s)
        else:
            reduce = partial(all_reduce, self._transport, array, tree, tag=tag)
            work = partial(reduce, timeout_s=timeout_s, algorithm=algorithm, wire=wire)
        # One thread for all tags: native calls match by their order alone.
        by_library = algorithm.facts.is_native
        return PendingAllReduce(
            future=self._thread(_LIBRARY if by_library else tag).begin(work),
            tag=tag,
            num_moved=lambda: self._transport.num_moved,
        )

    def close(self, *, timeout_s: float) -> None:
        """End the threads once all of them are complete.

        Raises:
            DeadlineError: a thread has not ended after `timeout_s`.
        """
        # Each has the whole timeout: only in the worst case does this take their sum.
        for thread in self._threads.values():
            thread.close(timeout_s=timeout_s)

    def _thread(self, key: int) -> SerialExecutor:
        """Return the thread of a tag, or that of native all-reduces."""
        if key not in self._threads:
            self._threads[key] = SerialExecutor(name=f"reduce {key} of rank {self._transport.rank}")
        return self._threads[key]

    def _with_feedback(
        self, array: ArrayT, tree: SyncTree, wire: WireFormat, *, tag: int, timeout_s: float
    ) -> ArrayT:
        # Errors belong to a tag, hence to a bucket: mixing buckets would add unrelated errors.
        errors = self.errors.get(tag, np.zeros(array.size, np.float32))
        total, self.errors[tag] = all_reduce_with_feedback(
            self._transport, array, tree, errors, tag=tag, timeout_s=timeout_s, wire=wire
        )
        return total
