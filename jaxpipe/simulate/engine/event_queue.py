"""The event queue: what happens next, in order of time, ties in order of arrival."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
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

    @property
    def next_s(self) -> float:
        """When something happens next; infinite if nothing is left to happen."""
        return self._heap[0][0] if self._heap else inf

    def run(self, *, until_s: float = inf) -> None:
        """Let everything happen that happens until then; ends when nothing is left of it."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_s:
            self.now_s, _, act, arguments = pop(heap)
            act(*arguments)
