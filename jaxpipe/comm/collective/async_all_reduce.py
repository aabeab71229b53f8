"""All-reduces beside the computation: those of one tag in one thread, in the order begun.

::

    compute thread   backward  backward  begin A  backward  begin B  ...  wait A  wait B  update
    thread of tag A                      └── sum A ─────────────┘
    thread of tag B                                         └── sum B ──────┘

A bucket begins when its last backward has been dispatched and ends under those that remain. Over
far links a small sum is all latency: it does not wait for a large one that began before it.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.sync_tree import SyncTree
from jaxpipe.comm.collective.all_reduce import all_reduce, all_reduce_with_feedback
from jaxpipe.comm.collective.wire_format import WireFormat
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.comm.transport import Transport
from jaxpipe.errors import DeadlineError

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)

_LIBRARY = -1  # no tag is negative


@runtime_checkable
class AllReduceHandle(Protocol[ArrayT]):
    """A sum under way; the array may not be changed before it is over."""

    @property
    def future(self) -> Future[ArrayT]:
        """The sum, once it is over."""
        ...

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum.

        Raises:
            DeadlineError: it is not there after `timeout_s`.
            TransportError: a message of it or of an earlier one with its tag could not be moved.
        """
        ...


@runtime_checkable
class AllReducer(Protocol):
    """Begins the sums of one rank; `errors[tag]` is what their codec has lost so far."""

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
        """Begin to sum `array` over the ranks of `tree`, and return at once."""
        ...

    def close(self, *, timeout_s: float) -> None:
        """End once all is summed.

        Raises:
            DeadlineError: it was not after `timeout_s`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PendingAllReduce(Generic[ArrayT]):
    """An all-reduce under way; the array may not be changed before it is over."""

    future: Future[ArrayT]
    tag: int

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self.future.done()

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum.

        Raises:
            DeadlineError: it is not there after `timeout_s`, or a message of it or of an earlier
                one took longer than it was given.
            TransportError: a message of it or of an earlier one could not be moved.
        """
        try:
            return self.future.result(timeout_s)
        except TimeoutError as error:
            words = f"waited {timeout_s:.1f} s in vain for the all-reduce with tag {self.tag}"
            raise DeadlineError(words) from error


class AsyncAllReduce:
    """Begins all-reduces of one rank; all ranks of a tree begin those of a tag in the same order.

    Sums of different tags go on together; but sums by a library are done in the order begun, for
    MPI and NCCL tell them apart by nothing else.

    A jax array may still be computed when its sum begins: the thread waits for it. With
    `feeds_back`, a hierarchical all-reduce with a codec adds to what it sends far what the codec
    has lost in the earlier ones of the same tag: `errors[tag]`, which may be saved and restored
    while nothing is under way.

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
        self._transport = transport
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
        """Begin to sum `array` over the ranks of `tree`, as `all_reduce` does, and return at once.

        Each of its messages may take `timeout_s`, the first ones until the last rank has begun.
        """
        is_hierarchical = algorithm is AllReduceKind.HIERARCHICAL
        if self._feeds_back and is_hierarchical and wire is not None and wire.far is not None:
            work = partial(self._with_feedback, array, tree, wire, tag=tag, timeout_s=timeout_s)
        else:
            reduce = partial(all_reduce, self._transport, array, tree, tag=tag)
            work = partial(reduce, timeout_s=timeout_s, algorithm=algorithm, wire=wire)
        by_library = algorithm is AllReduceKind.LIBRARY
        return PendingAllReduce(self._thread(_LIBRARY if by_library else tag).begin(work), tag)

    def close(self, *, timeout_s: float) -> None:
        """End the threads once all is summed.

        Raises:
            DeadlineError: one had not after `timeout_s`.
        """
        for thread in self._threads.values():
            thread.close(timeout_s=timeout_s)

    def _thread(self, key: int) -> SerialExecutor:
        """Return the thread of a tag, or of the library."""
        if key not in self._threads:
            self._threads[key] = SerialExecutor(name=f"reduce {key} of rank {self._transport.rank}")
        return self._threads[key]

    def _with_feedback(
        self, array: ArrayT, tree: SyncTree, wire: WireFormat, *, tag: int, timeout_s: float
    ) -> ArrayT:
        errors = self.errors.get(tag, np.zeros(array.size, np.float32))
        total, self.errors[tag] = all_reduce_with_feedback(
            self._transport, array, tree, errors, tag=tag, timeout_s=timeout_s, wire=wire
        )
        return total
