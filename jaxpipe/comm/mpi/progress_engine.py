"""Progress engine: drives pending messages by polling; the thread that holds the lock drives all.

MPI libraries move messages only inside of calls. So a background thread polls; and since that
thread reacts late, threads that wait or post poll as well. One lock admits one thread at a time, so
MPI never sees two. While another thread waits, the background thread only sleeps: two that compete
for the interpreter's lock are slower than one.

A waiting thread yields its core between two polls, and sleeps instead after `yielding_s`. The
sleep is a fraction of the time waited so far, at most a millisecond: no wait is prolonged by more,
and a rank that waits long leaves its core to others. It does not sleep sooner, since an MPI that
copies through shared memory needs both ranks to poll: each sleep would interrupt it; and a rank
with a core of its own yields for as long as a pipeline usually waits. On two cores, between stages
that compute for 6 to 15 ms, half of the messages of 128 KiB arrived within 0.54 ms that way, and
nine of ten within 0.75; with sleeps after two milliseconds, within 0.69 and 1.2.

A core may be wanted by other processes, such as the ranks of another run. A yield that returns late
has let one of them compute. For a second after it, this rank sleeps at once, half as long as it has
waited and for up to four milliseconds: polls would take the time of the others, and runs side by
side on the same cores get about their shares that way (`experiments/shared_cores`).

Polling once per millisecond takes 3 % of a core. So the background thread sleeps for up to 32
milliseconds while nothing is pending, as in the computes of data parallelism; a new operation wakes
it. In two replicas that computed for two seconds a step it took 5 of 600 ticks that way, 21 without
(measured). Many ranks on one core would take all of it, so they sleep longer, up to a tenth of a
second: see `longest_pause_s`.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from math import inf
from threading import Event, Lock, Thread, get_ident
from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxpipe.errors import DeadlineError

_YIELDING_S, _SHORT_YIELDING_S = 5e-2, 2e-3
_LATE_YIELD_S = 3e-4
_SHARED_S = 1.0
_TESTS_OF_ONE = 8
LONGEST_PAUSE_S = 1e-3
_LONGEST_CROWDED_PAUSE_S = 0.1
_POLLING_RANKS = 2
_SHORTEST_SLEEP_S = 2.5e-4
_PAUSE_OF_WAITED = 1 / 32
_SHARED_PAUSE_OF_WAITED, _LONGEST_SHARED_PAUSE_S = 1 / 2, 4e-3
_SLEEP_OF_IDLE = 1 / 8
_LONGEST_IDLE_PAUSE_S = 3.2e-2


@runtime_checkable
class Operation(Protocol):
    """A pending message. `start` and `test` are called by one thread at a time."""

    @property
    def channel(self) -> object:
        """Operations of one channel start in the order in which they were added."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has completed or failed."""
        ...

    def start(self) -> bool:
        """Start if it is ready; return whether it has started."""
        ...

    def test(self) -> bool:
        """Return whether it has completed or failed; called after `start` until it returns True."""
        ...

    def late(self, *, waited_s: float) -> DeadlineError:
        """Return the error of a wait that timed out after `waited_s`."""
        ...


OperationT = TypeVar("OperationT", bound=Operation)
Result = TypeVar("Result")


def _ignore(_now_s: float) -> None:
    """Default of `tend`."""


class ProgressEngine(Generic[OperationT]):
    """The operations of one rank, and the thread that drives them while no other thread waits.

    `nudge` is called instead of `test` when nothing is pending: a send that is complete here may
    still have to leave the host. `tend` is called with the time whenever operations are driven, by
    one thread at a time. Polls are at most `longest_pause_s` apart while an operation is pending; a
    wait has no pauses in its first `yielding_s`, unless other processes compute on this core.
    """

    def __init__(
        self,
        nudge: Callable[[], object],
        *,
        clock: Callable[[], float],
        longest_pause_s: float = LONGEST_PAUSE_S,
        yielding_s: float = _SHORT_YIELDING_S,
        tend: Callable[[float], object] = _ignore,
    ):
        self._nudge = nudge
        self._tend = tend
        self._clock = clock
        self._longest_pause_s = longest_pause_s
        self._yielding_s = yielding_s
        self._lock = Lock()
        self._added: deque[OperationT] = deque()
        self._unstarted: list[OperationT] = []
        self._started: list[OperationT] = []
        self._waiting: set[int] = set()
        self._shared_until_s = -inf
        self._stopped = Event()
        self._woken = Event()
        self._thread = Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def add(self, operation: OperationT) -> None:
        """Add an operation, and start it now if it is ready and no other thread is driving."""
        # Never wait for the lock: the thread that holds it starts this one on its next turn.
        if not self._lock.acquire(blocking=False):
            self._added.append(operation)
        else:
            try:
                # Not past operations that wait: messages of a channel must start in order.
                if not (self._unstarted or self._added) and operation.start():
                    self._started.append(operation)
                else:
                    self._added.append(operation)
            finally:
                self._lock.release()
        self._woken.set()

    def wait(self, operation: OperationT, *, timeout_s: float) -> None:
        """Drive all operations until this one is over.

        Raises:
            DeadlineError: it was not over after `timeout_s`; it stays pending, and a later wait may
                succeed.
        """
        if operation.is_over:
            return
        start_s = self._clock()
        # From here on the background thread sleeps and leaves polling to this one.
        self._waiting.add(get_ident())
        try:
            while not self._drive_to(operation):
                waited_s = self._clock() - start_s
                if waited_s >= timeout_s and not operation.is_over:
                    raise operation.late(waited_s=waited_s)
                self._pause(waited_s=waited_s)
        finally:
            self._waiting.discard(get_ident())

    def alone(self, work: Callable[[], Result]) -> Result:
        """Call `work` while no thread drives, and return its result."""
        with self._lock:
            return work()

    def unfinished(self) -> tuple[OperationT, ...]:
        """Return the operations that are not over."""
        with self._lock:
            known = (*self._started, *self._unstarted, *self._added)
            return tuple(operation for operation in known if not operation.is_over)

    def stop(self, *, timeout_s: float) -> None:
        """End the thread, or return after `timeout_s`."""
        self._stopped.set()
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        last_s = self._clock()
        while not self._stopped.is_set():
            longest_s = self._longest_s(is_shared=self._clock() < self._shared_until_s)
            if self._waiting:
                time.sleep(longest_s)
                continue
            if self._drive():
                last_s = self._clock()
            pause_s = (self._clock() - last_s) * _SLEEP_OF_IDLE
            self._sleep(max(pause_s, _SHORTEST_SLEEP_S), longest_s=longest_s)

    def _sleep(self, pause_s: float, *, longest_s: float) -> None:
        """Sleep; while nothing is pending for longer, until an operation is added."""
        # Before the look at what is pending: one that is added after it ends the sleep.
        self._woken.clear()
        if self._started or self._unstarted or self._added:
            time.sleep(min(pause_s, longest_s))
        else:
            self._woken.wait(min(pause_s, max(longest_s, _LONGEST_IDLE_PAUSE_S)))

    def _longest_s(self, *, is_shared: bool) -> float:
        return max(self._longest_pause_s, _LONGEST_SHARED_PAUSE_S if is_shared else 0.0)

    def _pause(self, *, waited_s: float) -> None:
        """Yield the core: for an instant at first, then for a fraction of the time waited."""
        before_s = self._clock()
        is_shared = before_s < self._shared_until_s
        if waited_s < self._yielding_s and not is_shared:
            os.sched_yield()
            after_s = self._clock()
            if after_s - before_s > _LATE_YIELD_S:
                self._shared_until_s = after_s + _SHARED_S
        else:
            part = _SHARED_PAUSE_OF_WAITED if is_shared else _PAUSE_OF_WAITED
            time.sleep(min(waited_s * part, self._longest_s(is_shared=is_shared)))

    def _drive_to(self, operation: OperationT) -> bool:
        """Test this operation a few times, then drive all once; return whether it is over.

        Testing one lets MPI move all messages; the ends of others are noticed a little later.
        """
        if not self._lock.acquire(blocking=False):
            return operation.is_over
        try:
            if operation in self._started:
                for _ in range(_TESTS_OF_ONE):
                    if operation.test():
                        self._started.remove(operation)
                        return True
            self._turn()
            return operation.is_over
        finally:
            self._lock.release()

    def _drive(self) -> bool:
        """Drive all once, unless another thread does; return whether any started or ended."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._turn()
        finally:
            self._lock.release()

    def _turn(self) -> bool:
        """Start what is ready and test what is started."""
        self._tend(self._clock())
        started = self._start()
        # Without a request to test, MPI would not be called, and a buffered send would not leave.
        if not self._started:
            self._nudge()
        before = len(self._started)
        self._started = [one for one in self._started if not one.test()]
        return started or len(self._started) < before

    def _start(self) -> bool:
        while self._added:
            self._unstarted.append(self._added.popleft())
        if not self._unstarted:
            return False
        blocked: set[object] = set()
        unstarted: list[OperationT] = []
        for operation in self._unstarted:
            if operation.channel not in blocked and operation.start():
                self._started.append(operation)
            else:
                # Later operations of this channel must not overtake this one.
                blocked.add(operation.channel)
                unstarted.append(operation)
        self._unstarted, before = unstarted, self._unstarted
        return len(unstarted) < len(before)


def longest_pause_s(*, num_ranks: int, num_cores: int) -> float:
    """Return the longest pause of ranks that share cores: longer if more than two share one.

    It grows with the square of their number: more ranks poll, and each poll takes longer, since its
    data is no longer in the cache (0.2 ms for 64 ranks on 2 cores).

    >>> [longest_pause_s(num_ranks=ranks, num_cores=2) for ranks in (1, 4, 8, 64)]
    [0.001, 0.001, 0.004, 0.1]
    """
    crowd = max(1.0, num_ranks / (_POLLING_RANKS * num_cores))
    return min(LONGEST_PAUSE_S * crowd**2, _LONGEST_CROWDED_PAUSE_S)


def yielding_s(*, num_ranks: int, num_cores: int) -> float:
    """Return for how long a waiting rank polls without a sleep: longer if it has a core alone.

    >>> [yielding_s(num_ranks=ranks, num_cores=2) for ranks in (1, 2, 3)]
    [0.05, 0.05, 0.002]
    """
    return _YIELDING_S if num_ranks <= num_cores else _SHORT_YIELDING_S
