"""Shared NICs: transfers that enter or leave a host at the same time divide its NIC evenly.

A transfer runs at the rate of its link or at its share of one of the NICs on its path, whichever is
the least::

    rate = min(link, egress / transfers leaving, ingress / transfers entering)

Whenever a transfer starts or ends, the rates of all transfers at the same NICs change. The part of
its share that a transfer cannot use, because another limit slows it down, stays unused: TCP flows
do not discover it in time.
"""

from collections.abc import Callable

from jaxpipe.network.event_queue import Clock


class Nic:
    """A bandwidth that transfers share: one direction of a NIC, or of the CPU that feeds it."""

    __slots__ = ("bytes_per_s", "share", "transfers")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.share = bytes_per_s  # bytes/s of each transfer; kept, since it is read far more often
        # A dict is a set in order of insertion: the same traffic always settles in the same order.
        self.transfers: dict[SharedTransfer, None] = {}

    def add(self, transfer: "SharedTransfer") -> None:
        """Give a transfer its share."""
        self.transfers[transfer] = None
        self.share = self.bytes_per_s / len(self.transfers)

    def remove(self, transfer: "SharedTransfer") -> None:
        """Divide the share of a transfer among the others."""
        del self.transfers[transfer]
        self.share = self.bytes_per_s / max(1, len(self.transfers))


class SharedTransfer:
    """A message whose bytes are leaving through shared NICs."""

    __slots__ = ("_clock", "_done", "_link", "_nics", "_rate", "_remaining", "_since")

    def __init__(
        self,
        clock: Clock,
        *,
        num_bytes: float,
        link_bytes_per_s: float,
        nics: tuple[Nic, ...],
        done: Callable[[], None],
    ) -> None:
        """Start now; call `done()` when the last byte has left."""
        self._clock = clock
        self._remaining = num_bytes
        self._link = link_bytes_per_s
        self._nics = nics
        self._done = done
        self._rate = 0.0
        self._since = clock.now_s
        for nic in nics:
            nic.add(self)
        self._settle_neighbours()

    def _settle_neighbours(self) -> None:
        # A transfer at several of these NICs settles at the first: nothing changes in between.
        for nic in self._nics:
            for transfer in nic.transfers:
                transfer._settle()

    def _settle(self) -> None:
        """Subtract the bytes sent so far, and continue at the new rate."""
        rate = self._link
        for nic in self._nics:
            # Faster than `min`, in the innermost loop of simulations with shared NICs.
            if nic.share < rate:  # noqa: PLR1730
                rate = nic.share
        if rate == self._rate:
            return
        now_s = self._clock.now_s
        self._remaining -= self._rate * (now_s - self._since)
        self._rate, self._since = rate, now_s
        end_s = now_s + max(0.0, self._remaining) / rate  # rounding can leave less than 0 bytes
        self._clock.at(end_s, self._finish, rate, now_s)

    def _finish(self, rate: float, since_s: float) -> None:
        if rate != self._rate or since_s != self._since:
            return  # stale: the rate has changed since this event was scheduled
        self._rate = -1.0  # no pending event of this transfer can match any more
        for nic in self._nics:
            nic.remove(self)
        # Before `done`, which may start the next transfer of the link.
        self._settle_neighbours()
        self._done()
