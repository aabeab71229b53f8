"""Timer: an event queue that a thread follows by the real clock."""

from collections.abc import Callable
from math import inf
from threading import Condition, Thread
from typing import Any

from jaxpipe.errors import DeadlineError
from jaxpipe.network import EventQueue


class Timer:
    """Handles events in order of time, never early, and as soon after as the machine allows.

    Its time is that of `clock`, in seconds. Only the thread handles events, so what they share
    needs no lock. An event that raises ends the thread, and the error goes to `failed`.

    >>> import time
    >>> calls: list[str] = []
    >>> timer = Timer(name="example", clock=time.perf_counter, failed=print)
    >>> timer.at(time.perf_counter() + 2e-3, calls.append, "later")
    >>> timer.at(time.perf_counter() + 1e-3, calls.append, "sooner")
    >>> timer.close(timeout_s=5.0)
    >>> calls
    ['sooner', 'later']
    """

    def __init__(
        self, *, name: str, clock: Callable[[], float], failed: Callable[[Exception], object]
    ) -> None:
        self._name, self._clock, self._failed = name, clock, failed
        self._changed = Condition()
        self._queue = EventQueue()
        self._is_closing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        """The time for which the latest event was scheduled; the thread handles it later."""
        return self._queue.now_s

    def at(self, time_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call `call(*arguments)` in the thread at `time_s`; at once if that is past."""
        with self._changed:
            # The thread may have handled later events already, and its time must not run back.
            next_s = self._queue.next_s
            self._queue.at(max(time_s, self._queue.now_s), call, *arguments)
            if self._queue.next_s < next_s:  # else the thread wakes up in time anyway
                self._changed.notify()

    def at_end(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call `call(*arguments)` in the thread after all other events of the present time.

        Only events call this: the thread looks for its next one by itself.
        """
        with self._changed:
            self._queue.at_end(call, *arguments)

    def close(self, *, timeout_s: float) -> None:
        """End the thread once it has handled all events.

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
        """Let the thread end once it has handled all events, and return at once."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def _run(self) -> None:
        while (event := self._next()) is not None:
            call, arguments = event
            try:
                call(*arguments)
            except Exception as error:
                self._failed(error)
                return

    def _next(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        """Wait for the time of the next event, and return it; None once all are handled."""
        with self._changed:
            while self._queue.next_s < inf or not self._is_closing:
                early_s = self._queue.next_s - self._clock()
                if early_s <= 0:
                    return self._queue.pop()
                self._changed.wait(None if early_s == inf else early_s)
            return None
