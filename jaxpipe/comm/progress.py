"""Drive messages that need a thread's calls to move: whoever has the lock drives them all.

No MPI that we know moves messages while nobody calls it. So a thread calls it all along; and since
a thread of its own answers late, whoever waits or posts calls it as well. One lock lets in one
thread at a time: MPI has to be told of threads, but never meets two of them. While somebody waits,
the thread only sleeps: two that take turns at the interpreter's lock are slower than one.

Nobody spins for long. The pause before the next look is a part of what has been waited already, up
to a millisecond: no wait is prolonged by more, and a rank that waits leaves its core to others.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread, get_ident
from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxpipe.errors import DeadlineError

_LONGEST_PAUSE_S = 1e-3
_SHORTEST_PAUSE_S = 2e-5
_SHORTEST_SLEEP_S = 2.5e-4
_PAUSE_OF_WAITED = 1 / 32
_SLEEP_OF_IDLE = 1 / 8


@runtime_checkable
class Operation(Protocol):
    """A message under way. `start` and `test` are called by one thread at a time."""

    @property
    def channel(self) -> object:
        """Operations of one channel start in the order in which they were added."""
        ...

    @property
    def over(self) -> Event:
        """Set once it has ended, well or not."""
        ...

    def start(self) -> bool:
        """Start if it is ready to; return whether it has started."""
        ...

    def test(self) -> bool:
        """Return whether it has ended; called once it has started, until it returns True."""
        ...

    def late(self, *, waited_s: float) -> DeadlineError:
        """Return the error of a wait that lasted `waited_s` in vain."""
        ...


OperationT = TypeVar("OperationT", bound=Operation)
Result = TypeVar("Result")


class Progress(Generic[OperationT]):
    """The operations of one rank, and the thread that drives them while nobody waits.

    `nudge` is called instead of `test` when nothing is under way: what has ended here may still
    have to leave.
    """

    def __init__(self, nudge: Callable[[], object], *, clock: Callable[[], float]):
        self._nudge = nudge
        self._clock = clock
        self._lock = Lock()
        self._added: deque[OperationT] = deque()
        self._unstarted: list[OperationT] = []
        self._started: list[OperationT] = []
        self._waiting: set[int] = set()
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def add(self, operation: OperationT) -> None:
        """Take on an operation, and start it now if it is ready and nobody else is driving."""
        self._added.append(operation)
        if self._lock.acquire(blocking=False):
            try:
                self._start()
            finally:
                self._lock.release()

    def wait(self, operation: OperationT, *, timeout_s: float) -> None:
        """Drive all operations until this one is over.

        Raises:
            DeadlineError: it was not over after `timeout_s`; it goes on, and may be waited for.
        """
        if operation.over.is_set():
            return
        start_s = self._clock()
        self._waiting.add(get_ident())
        try:
            while not operation.over.is_set():
                self._drive()
                waited_s = self._clock() - start_s
                if waited_s >= timeout_s and not operation.over.is_set():
                    raise operation.late(waited_s=waited_s)
                _pause(operation.over, waited_s=waited_s)
        finally:
            self._waiting.discard(get_ident())

    def alone(self, work: Callable[[], Result]) -> Result:
        """Call `work` while nobody drives, and return what it returns."""
        with self._lock:
            return work()

    def unfinished(self) -> tuple[OperationT, ...]:
        """Return the operations that are not over."""
        with self._lock:
            known = (*self._started, *self._unstarted, *self._added)
            return tuple(operation for operation in known if not operation.over.is_set())

    def stop(self, *, timeout_s: float) -> None:
        """End the thread, or give up after `timeout_s`."""
        self._stopped.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        last_s = self._clock()
        while not self._stopped.is_set():
            if self._waiting:
                time.sleep(_LONGEST_PAUSE_S)
                continue
            if self._drive():
                last_s = self._clock()
            pause_s = (self._clock() - last_s) * _SLEEP_OF_IDLE
            time.sleep(min(max(pause_s, _SHORTEST_SLEEP_S), _LONGEST_PAUSE_S))

    def _drive(self) -> bool:
        """Start what is ready and test what is started, unless another thread is at it.

        Returns whether anything was started or ended.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            started = self._start()
            if not self._started:
                self._nudge()
            before = len(self._started)
            self._started = [one for one in self._started if not one.test()]
            return started or len(self._started) < before
        finally:
            self._lock.release()

    def _start(self) -> bool:
        while self._added:
            self._unstarted.append(self._added.popleft())
        if not self._unstarted:
            return False
        held: set[object] = set()
        unstarted: list[OperationT] = []
        for operation in self._unstarted:
            if operation.channel not in held and operation.start():
                self._started.append(operation)
            else:
                held.add(operation.channel)
                unstarted.append(operation)
        self._unstarted, before = unstarted, self._unstarted
        return len(unstarted) < len(before)


def _pause(over: Event, *, waited_s: float) -> None:
    """Give the core away: for an instant at first, then for a part of the time waited."""
    pause_s = min(waited_s * _PAUSE_OF_WAITED, _LONGEST_PAUSE_S)
    if pause_s < _SHORTEST_PAUSE_S:
        os.sched_yield()
    else:
        over.wait(pause_s)
