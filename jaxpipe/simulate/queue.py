"""The event queue: what happens next, in order of time, ties in order of arrival."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class EventQueue:
    """A clock that jumps from event to event.

    >>> queue = EventQueue()
    >>> queue.at(2.0, print, "second")
    >>> queue.at(1.0, print, "first")
    >>> queue.run()
    first
    second
    >>> queue.now_s
    2.0
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, time_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act(*arguments)` once the clock shows `time_s`, which is not in the past."""
        heapq.heappush(self._heap, (time_s, next(self._order), act, arguments))

    def run(self) -> None:
        """Let everything happen; ends when nothing is left to happen."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            self.now_s, _, act, arguments = pop(heap)
            act(*arguments)
