"""A tracker beside the training: in a thread of its own, which may fail or hang alone."""

import logging
from collections.abc import Callable, Mapping
from queue import Full, Queue
from threading import Lock, Thread

from jaxpipe.runtime.metrics.trackers.tracker import Tracker

logger = logging.getLogger(__name__)

_ROOM = 1000
"""How many steps a tracker may be behind."""


class BackgroundTracker:
    """Makes a tracker, tells it, and closes it, all in one thread; its caller never waits but last.

    The first thing that goes wrong is told once, as a warning, and then the tracker is left alone.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], *, room: int = _ROOM) -> None:
        self._name = name
        self._make = make
        self._told: Queue[tuple[int, Mapping[str, float]] | None] = Queue(room)
        self._lock = Lock()
        self._is_lost = False
        self._thread = Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Let the tracker know of a step, when it has time."""
        if self._is_lost:
            return
        try:
            self._told.put_nowait((step, values))
        except Full:
            self._lose(f"it is {self._told.maxsize} steps behind")

    def close(self, *, timeout_s: float) -> None:
        """Wait until the tracker has done with all that it was told, but no longer than that."""
        if self._is_lost:
            return
        try:
            self._told.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        except Full:
            pass
        if self._thread.is_alive():
            self._lose(f"it has not come to its end within {timeout_s:g} s")

    def _run(self) -> None:
        try:
            tracker = self._make()
            while (told := self._told.get()) is not None:
                tracker.tell(*told)
            tracker.close()
        except Exception as error:  # whatever is the matter with it, training goes on
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        with self._lock:
            was_lost, self._is_lost = self._is_lost, True
        if not was_lost:
            line = " ".join(why.split())
            logger.warning("%s is told no more, training goes on: %s", self._name, line)
