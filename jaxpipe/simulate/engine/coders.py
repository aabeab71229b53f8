"""The threads that encode and decode messages: one for each rank, a message after the other."""

from collections import defaultdict
from collections.abc import Callable

from jaxpipe.network import EventQueue


class Coders:
    """The time at which the thread of each rank is free.

    >>> queue = EventQueue()
    >>> coders = Coders(queue)
    >>> for seconds in (2.0, 3.0):
    ...     coders.run(0, seconds, lambda: print(queue.now_s))
    >>> queue.run()
    2.0
    5.0
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._free_s: defaultdict[int, float] = defaultdict(float)

    def run(self, rank: int, seconds: float, then: Callable[[], object]) -> None:
        """Call `then` once the thread of a rank has worked for so many seconds; at once, if 0."""
        if seconds == 0:
            then()
            return
        self._free_s[rank] = max(self._queue.now_s, self._free_s[rank]) + seconds
        self._queue.at(self._free_s[rank], then)
