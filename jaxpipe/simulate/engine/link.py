"""One directed link: it carries one message at a time, in the order of posting."""

from collections import deque
from collections.abc import Callable
from functools import partial

from jaxpipe.simulate.engine.event_queue import EventQueue
from jaxpipe.simulate.engine.message_costs import MessageCosts
from jaxpipe.simulate.engine.nic import Nic, SharedTransfer

Arrival = Callable[[], None]
Foresight = Callable[[float], None]
"""Is told when a message will arrive."""


def _forget(_: float) -> None:
    """Leave it at the arrival itself."""


class Link:
    """From one device to another, as a wire uses it; `nics` are the limits that it shares."""

    __slots__ = (
        "_bytes_per_s",
        "_free_s",
        "_in_flight",
        "_is_sending",
        "_latency_s",
        "_nics",
        "_queue",
        "_unreceived",
        "_waiting",
        "_wire",
    )

    def __init__(
        self,
        queue: EventQueue,
        wire: MessageCosts,
        *,
        latency_s: float,
        bytes_per_s: float,
        nics: tuple[Nic, ...] = (),
    ) -> None:
        self._queue = queue
        self._wire = wire
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._nics = nics
        self._free_s = 0.0
        self._in_flight = 0
        self._unreceived = 0
        self._is_sending = False
        self._waiting: deque[tuple[float, Arrival, Foresight]] = deque()

    def send(self, num_bytes: float, arrived: Arrival, *, foreseen: Foresight = _forget) -> None:
        """Post a message now; `arrived()` is called when its last byte is at its destination.

        `foreseen` is called as soon as it is certain when that will be, a latency before or more.
        """
        self._waiting.append((num_bytes, arrived, foreseen))
        self._start()

    def receive(self) -> None:
        """Free the buffer of one message that has arrived."""
        self._unreceived -= 1
        if self._waiting:
            self._start()

    def _may_start(self) -> bool:
        window, num_buffers = self._wire.window, self._wire.num_buffers
        return (
            not self._is_sending
            and (window is None or self._in_flight < window)
            and (num_buffers is None or self._unreceived < num_buffers)
        )

    def _start(self) -> None:
        while self._waiting and self._may_start():
            num_bytes, arrived, foreseen = self._waiting.popleft()
            self._in_flight += 1
            self._unreceived += 1
            if self._nics:
                self._is_sending = True
                start_s = self._queue.now_s + self._wire.overhead_s
                self._queue.at(start_s, self._share, num_bytes, arrived, foreseen)
            else:
                start_s = max(self._queue.now_s, self._free_s) + self._wire.overhead_s
                self._free_s = start_s + num_bytes / self._bytes_per_s
                self._leave(self._free_s, arrived, foreseen)

    def _share(self, num_bytes: float, arrived: Arrival, foreseen: Foresight) -> None:
        SharedTransfer(
            self._queue,
            num_bytes=num_bytes,
            link_bytes_per_s=self._bytes_per_s,
            nics=self._nics,
            done=partial(self._sent, arrived, foreseen),
        )

    def _sent(self, arrived: Arrival, foreseen: Foresight) -> None:
        self._is_sending = False
        self._leave(self._queue.now_s, arrived, foreseen)
        if self._waiting:
            self._start()

    def _leave(self, leaves_s: float, arrived: Arrival, foreseen: Foresight) -> None:
        arrives_s = leaves_s + self._latency_s
        self._queue.at(arrives_s, self._arrive, arrived)
        foreseen(arrives_s)

    def _arrive(self, arrived: Arrival) -> None:
        self._in_flight -= 1
        arrived()
        if self._waiting:
            self._start()
