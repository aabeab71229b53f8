"""A thread that calls what it is given, each at its time."""

import heapq
from collections.abc import Callable
from itertools import count
from threading import Condition, Thread

from jaxpipe.errors import DeadlineError

Call = Callable[[], object]


class Timer:
    """Calls in the order of their times, never before, and as soon after as the machine allows.

    An error of a call goes to `failed`, and ends the thread. `clock` is in seconds.

    >>> import time
    >>> calls: list[str] = []
    >>> timer = Timer(name="example", clock=time.perf_counter, failed=print)
    >>> timer.at(time.perf_counter() + 2e-3, lambda: calls.append("later"))
    >>> timer.at(time.perf_counter() + 1e-3, lambda: calls.append("sooner"))
    >>> timer.close(timeout_s=5.0)
    >>> calls
    ['sooner', 'later']
    """

    def __init__(
        self, *, name: str, clock: Callable[[], float], failed: Callable[[Exception], object]
    ) -> None:
        self._name, self._clock, self._failed = name, clock, failed
        self._changed = Condition()
        self._number = count()
        self._calls: list[tuple[float, int, Call]] = []
        self._is_closing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def at(self, when_s: float, call: Call) -> None:
        """Let the thread call `call` at `when_s` on its clock; of equal times, the first first."""
        with self._changed:
            heapq.heappush(self._calls, (when_s, next(self._number), call))
            if self._calls[0][0] == when_s:
                self._changed.notify()

    def close(self, *, timeout_s: float) -> None:
        """End the thread once it has called all.

        Raises:
            DeadlineError: it had not after `timeout_s`.
        """
        self.end()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineError(
                f"timed out after {timeout_s:.1f} s waiting for the thread {self._name}"
            )

    def end(self) -> None:
        """Let the thread end once it has called all, and return at once."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception as error:
                self._failed(error)
                return

    def _next(self) -> Call | None:
        """Wait for the time of the next call, and return it; None once all is done."""
        with self._changed:
            while True:
                if not self._calls:
                    if self._is_closing:
                        return None
                    self._changed.wait()
                elif (early_s := self._calls[0][0] - self._clock()) > 0:
                    self._changed.wait(early_s)
                else:
                    return heapq.heappop(self._calls)[2]
