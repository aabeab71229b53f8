"""Event queue: pending calls in order of time, ties in order of insertion."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any, Protocol, runtime_checkable

_LAST = 2**62
"""The order of events that come last at their time: more than any counter reaches."""


@runtime_checkable
class Clock(Protocol):
    """Time, and calls at given times: an `EventQueue`, or a thread that follows the real clock."""

    @property
    def now_s(self) -> float:
        """The time of the event that is being handled."""
        ...

    def at(self, time_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call `call(*arguments)` at `time_s`."""
        ...

    def at_end(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call `call(*arguments)` now, after all other calls at this time."""
        ...


class EventQueue:
    """A clock that jumps from event to event.

    >>> queue = EventQueue()
    >>> queue.at(2.0, print, "second")
    >>> queue.at(1.0, print, "first")
    >>> queue.at(1.0, queue.at_end, print, "after the first")
    >>> queue.at(1.0, print, "also first")
    >>> queue.run()
    first
    also first
    after the first
    second
    >>> queue.now_s
    2.0
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        # The counter orders events of the same time and keeps the heap from comparing callables.
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, time_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule `call(*arguments)` at `time_s`, which must not be in the past."""
        heapq.heappush(self._heap, (time_s, next(self._order), call, arguments))

    def at_end(self, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule `call(*arguments)` at the present time, after all other events of that time."""
        heapq.heappush(self._heap, (self.now_s, _LAST + next(self._order), call, arguments))

    @property
    def next_s(self) -> float:
        """The time of the next event; infinity if none is pending."""
        return self._heap[0][0] if self._heap else inf

    def pop(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """Advance the clock to the next event, remove it, and return its call and arguments."""
        self.now_s, _, call, arguments = heapq.heappop(self._heap)
        return call, arguments

    def run(self, *, until_s: float = inf) -> None:
        """Handle all events up to `until_s`, including those that they schedule."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, arguments = pop(heap)
            call(*arguments)
