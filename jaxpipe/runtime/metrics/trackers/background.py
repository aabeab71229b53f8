"""A tracker in a thread of its own, where it may fail or hang without affecting the training."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Full, Queue
from threading import Lock, Thread

from jaxpipe.runtime.metrics.trackers.tracker import Tracker

logger = logging.getLogger(__name__)

_MAX_STEPS_BEHIND = 1000


class BackgroundTracker:
    """Creates, calls and closes a tracker in one thread; only `close` waits for it.

    The first failure is logged as a warning, and then the tracker is abandoned.
    """

    def __init__(
        self, name: str, make: Callable[[], Tracker], *, max_steps_behind: int = _MAX_STEPS_BEHIND
    ) -> None:
        self._name = name
        self._make = make
        # Bounded: a service that hangs for a night must not fill the memory of rank 0.
        self._queue: Queue[tuple[int, Mapping[str, float]] | None] = Queue(max_steps_behind)
        self._lock = Lock()
        self._is_lost = self._is_ending = False
        self._thread = Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the metrics of a step, and return at once."""
        if self._is_lost:
            return
        try:
            self._queue.put_nowait((step, values))
        except Full:
            self._lose(f"it is {self._queue.maxsize} steps behind")

    def end(self) -> None:
        """Let the tracker close once it has logged everything, if its queue has room for that."""
        if not self._is_ending:
            with suppress(Full):
                self._queue.put_nowait(None)
                self._is_ending = True

    def close(self, *, timeout_s: float, since_s: float | None = None) -> None:
        """Wait until the tracker has logged everything, but at most `timeout_s`.

        They begin now, or at `since_s` of `time.monotonic`.
        """
        if self._is_lost:
            return
        end_s = (time.monotonic() if since_s is None else since_s) + timeout_s
        if not self._is_ending:
            with suppress(Full):
                self._queue.put(None, timeout=max(0.0, end_s - time.monotonic()))
        # What is left of the time: waiting for room in the queue is a part of it.
        self._thread.join(max(0.0, end_s - time.monotonic()))
        if self._thread.is_alive():
            self._lose(f"it did not finish within {timeout_s:g} s")

    def _run(self) -> None:
        try:
            tracker = self._make()
            while (queued := self._queue.get()) is not None:
                tracker.log(*queued)
            tracker.close()
        except Exception as error:  # any failure of a service must leave the training alone
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        # Both threads may get here: the lock makes one warning of it.
        with self._lock:
            was_lost, self._is_lost = self._is_lost, True
        if not was_lost:
            line = " ".join(why.split())
            logger.warning("training continues without the tracker %s: %s", self._name, line)
