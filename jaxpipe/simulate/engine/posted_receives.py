"""Posted receives: of a long message only the eager bytes leave before its receive is posted.

::

    sender      forward ├ eager bytes ┤   ...   ├ rest ┤
    receiver    backward                 ├ request ┤   ├ latency ┤ forward
                                         └ posts the receive

Buffers hold the eager bytes at the receiver: NCCL's and the kernel's. A runtime that posts all
receives ahead has no limit.
"""

from collections.abc import Callable, Hashable

from jaxpipe.network import EventQueue, Link


class PostedReceives:
    """The messages whose rest waits for a receive, and the receives that wait for a message."""

    def __init__(self, queue: EventQueue, eager_bytes: float) -> None:
        """Of each message, `eager_bytes` leave at once."""
        self._queue = queue
        self._eager_bytes = eager_bytes
        self._requested: set[Hashable] = set()
        self._waiting: dict[Hashable, Callable[[], None]] = {}

    def send(
        self, message: Hashable, link: Link, num_bytes: float, arrived: Callable[[], object]
    ) -> None:
        """Send a message; `arrived` is called when its last byte is at its destination."""
        if num_bytes <= self._eager_bytes:
            link.send(num_bytes, arrived)
            return
        has_eager = self._eager_bytes > 0
        if has_eager:
            link.send(self._eager_bytes, _ignore)

        def rest() -> None:
            link.send(num_bytes - self._eager_bytes, arrived, is_rest=has_eager)

        if message in self._requested:
            self._requested.remove(message)
            rest()
        else:
            self._waiting[message] = rest

    def post(self, message: Hashable, num_bytes: float, *, latency_s: float) -> None:
        """Post the receive of a message; the request reaches its sender after a latency."""
        if num_bytes > self._eager_bytes:
            self._queue.at(self._queue.now_s + latency_s, self._request, message)

    def _request(self, message: Hashable) -> None:
        rest = self._waiting.pop(message, None)
        if rest is None:
            self._requested.add(message)
        else:
            rest()


def _ignore() -> None:
    """Do nothing when the eager bytes arrive."""
