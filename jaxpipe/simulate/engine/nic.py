"""Shared NICs: what enters or leaves a host at once divides its NIC evenly.

A transfer runs at the rate of its link, or at its share of one of the NICs that it passes,
whichever is least::

    rate = min(link, egress / transfers leaving, ingress / transfers entering)

Whenever a transfer starts or ends, the transfers at the same NICs change their rates. What a
transfer that is held up elsewhere leaves of its share stays unused: TCP flows do not know of it in
time.
"""

from collections.abc import Callable

from jaxpipe.simulate.engine.event_queue import EventQueue


class Nic:
    """What several transfers share: one direction of a NIC, or of the CPU that feeds it."""

    __slots__ = ("bytes_per_s", "transfers")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.transfers: dict[SharedTransfer, None] = {}  # a set that keeps its order


class SharedTransfer:
    """A message that is leaving through shared NICs."""

    __slots__ = ("_done", "_link", "_nics", "_queue", "_rate", "_remaining", "_since")

    def __init__(
        self,
        queue: EventQueue,
        *,
        num_bytes: float,
        link_bytes_per_s: float,
        nics: tuple[Nic, ...],
        done: Callable[[], None],
    ) -> None:
        """Start now; call `done()` when the last byte has left."""
        self._queue = queue
        self._remaining = num_bytes
        self._link = link_bytes_per_s
        self._nics = nics
        self._done = done
        self._rate = 0.0
        self._since = queue.now_s
        for nic in nics:
            nic.transfers[self] = None
        self._settle_neighbours()

    def _settle_neighbours(self) -> None:
        neighbours: dict[SharedTransfer, None] = {}
        for nic in self._nics:
            neighbours |= nic.transfers
        for transfer in neighbours:
            transfer._settle()

    def _settle(self) -> None:
        """Account for what has moved, and go on at the rate that is now due."""
        rate = self._link
        for nic in self._nics:
            rate = min(rate, nic.bytes_per_s / len(nic.transfers))
        if rate == self._rate:
            return
        now_s = self._queue.now_s
        self._remaining -= self._rate * (now_s - self._since)
        self._rate, self._since = rate, now_s
        end_s = now_s + max(0.0, self._remaining) / rate
        self._queue.at(end_s, self._finish, rate, now_s)

    def _finish(self, rate: float, since_s: float) -> None:
        if rate != self._rate or since_s != self._since:
            return  # it has changed its pace since this end was foreseen
        self._rate = -1.0
        for nic in self._nics:
            del nic.transfers[self]
        self._settle_neighbours()
        self._done()
