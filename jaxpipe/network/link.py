"""Link: a directed connection that serialises messages in the order of posting.

::

    posted    starts               leaves           arrives
       │ queue   │ overhead, bytes / rate │   latency    │

Without shared NICs the times are known when the message starts. With them the rate changes with the
traffic of other links, so the time of leaving is known only when the last byte leaves.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from jaxpipe.network.congestion_window import CongestionWindow
from jaxpipe.network.event_queue import Clock
from jaxpipe.network.message_costs import MessageCosts
from jaxpipe.network.nic import Nic, SharedTransfer

OnArrival: TypeAlias = Callable[[], object]
"""Called when the last byte of a message is at its destination."""
OnTimed: TypeAlias = Callable[[float, float], object]
"""Called with the times when the last byte of a message leaves the link and when it arrives."""


def _ignore(_leaves_s: float, _arrives_s: float) -> None:
    """Default of `OnTimed`."""


class Link:
    """A link from one device to another under the costs of one kind of message.

    `nics` are the limits that it shares with other links, `rtt_s` its round trip for the congestion
    window, which counts only if the costs have one: twice the latency by default.
    """

    __slots__ = (
        "_bytes_per_s",
        "_clock",
        "_congestion",
        "_costs",
        "_free_s",
        "_in_flight",
        "_is_sending",
        "_latency_s",
        "_nics",
        "_unreceived",
        "_waiting",
    )

    def __init__(
        self,
        clock: Clock,
        costs: MessageCosts,
        *,
        latency_s: float,
        bytes_per_s: float,
        nics: tuple[Nic, ...] = (),
        rtt_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._costs = costs
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._nics = nics
        self._free_s = 0.0
        self._in_flight = 0
        self._unreceived = 0
        self._is_sending = False
        self._waiting: deque[tuple[float, float, OnArrival, OnTimed]] = deque()
        self._congestion = (
            None
            if costs.restart_bytes is None
            else CongestionWindow(
                restart_bytes=costs.restart_bytes,
                rtt_s=2 * latency_s if rtt_s is None else rtt_s,
                bytes_per_s=bytes_per_s,
                largest_bytes=costs.largest_window_bytes,
            )
        )

    def send(
        self,
        num_bytes: float,
        on_arrival: OnArrival,
        *,
        on_timed: OnTimed = _ignore,
        is_rest: bool = False,
    ) -> None:
        """Post a message at the clock's current time, or the rest of one, which has no overhead.

        `on_timed(leaves_s, arrives_s)` is called as soon as both times are certain, which is one
        latency before the arrival or earlier.
        """
        overhead_s = 0.0 if is_rest else self._costs.overhead_s
        self._waiting.append((num_bytes, overhead_s, on_arrival, on_timed))
        self._start()

    def receive(self) -> None:
        """Free the buffer of one message that has arrived."""
        self._unreceived -= 1
        if self._waiting:
            self._start()

    def _may_start(self) -> bool:
        window, num_buffers = self._costs.window, self._costs.num_buffers
        # `_is_sending` is for shared NICs only: without them `_free_s` is the queue.
        return (
            not self._is_sending
            and (window is None or self._in_flight < window)
            and (num_buffers is None or self._unreceived < num_buffers)
        )

    def _start(self) -> None:
        while self._waiting and self._may_start():
            num_bytes, overhead_s, on_arrival, on_timed = self._waiting.popleft()
            self._in_flight += 1
            self._unreceived += 1
            if self._nics:
                self._is_sending = True
                # The overhead occupies the link, but not yet its share of the NICs.
                start_s = self._clock.now_s + overhead_s
                if self._congestion is not None:
                    # Shared NICs decide the rate later, event by event: a slow start delays the
                    # message by what it costs on NICs that nobody else uses.
                    leaves_s = self._congestion.send(start_s, num_bytes)
                    start_s = leaves_s - num_bytes / self._bytes_per_s
                self._clock.at(start_s, self._share, num_bytes, on_arrival, on_timed)
            else:
                # No event while the link is busy: its next free time says all, and is cheaper.
                start_s = max(self._clock.now_s, self._free_s) + overhead_s
                self._free_s = self._leave_s(start_s, num_bytes)
                self._leave(self._free_s, on_arrival, on_timed)

    def _leave_s(self, start_s: float, num_bytes: float) -> float:
        if self._congestion is None:
            return start_s + num_bytes / self._bytes_per_s
        return self._congestion.send(start_s, num_bytes)

    def _share(self, num_bytes: float, on_arrival: OnArrival, on_timed: OnTimed) -> None:
        SharedTransfer(
            self._clock,
            num_bytes=num_bytes,
            link_bytes_per_s=self._bytes_per_s,
            nics=self._nics,
            done=partial(self._sent, on_arrival, on_timed),
        )

    def _sent(self, on_arrival: OnArrival, on_timed: OnTimed) -> None:
        self._is_sending = False
        self._leave(self._clock.now_s, on_arrival, on_timed)
        if self._waiting:
            self._start()

    def _leave(self, leaves_s: float, on_arrival: OnArrival, on_timed: OnTimed) -> None:
        arrives_s = leaves_s + self._latency_s
        self._clock.at(arrives_s, self._arrive, on_arrival)
        on_timed(leaves_s, arrives_s)

    def _arrive(self, on_arrival: OnArrival) -> None:
        # Before the callback, which may post the next message to this link.
        self._in_flight -= 1
        on_arrival()
        if self._waiting:
            self._start()
