"""Shared NICs: transfers that enter or leave a host at the same time divide its NIC evenly.

A transfer runs at the rate of its link or at its share of one of the NICs on its path, whichever is
the least. The trunk between two regions is shared in the same way::

    rate = min(link, egress / transfers leaving, ingress / transfers entering, trunk / transfers)

Whenever transfers start or end, the rates of all transfers at the same NICs change, once for all
that start and end at one time: where one message follows another, none changes. The part of its
share that a transfer cannot use, because another limit slows it down, stays unused: TCP flows do
not discover it in time.
"""

from collections.abc import Callable

from jaxpipe.network.event_queue import Clock


class NicTraffic:
    """The transfers of some NICs, whose rates settle at the end of each instant that changes them.

    A time per instant, not per transfer: of n transfers that start together, each would otherwise
    settle n times.
    """

    __slots__ = ("_changed", "_clock", "_started")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Dicts are sets in order of insertion: the same traffic always settles in the same order.
        self._changed: dict[Nic, None] = {}
        self._started: dict[SharedTransfer, None] = {}

    def start(self, transfer: "SharedTransfer") -> None:
        """Add a transfer to its NICs; it starts when this instant ends."""
        self._change(transfer.nics)
        self._started[transfer] = None
        for nic in transfer.nics:
            nic.transfers[transfer] = None

    def end(self, transfer: "SharedTransfer") -> None:
        """Remove a transfer from its NICs."""
        self._change(transfer.nics)
        for nic in transfer.nics:
            del nic.transfers[transfer]

    def _change(self, nics: tuple["Nic", ...]) -> None:
        if not self._changed:
            self._clock.at_end(self._settle)
        for nic in nics:
            self._changed[nic] = None

    def _settle(self) -> None:
        changed, started = self._changed, self._started
        self._changed, self._started = {}, {}
        now_s = self._clock.now_s
        # All shares come first: a transfer settles once for all of its NICs.
        settling = started
        for nic in changed:
            if nic.divide():
                settling.update(nic.transfers)
        for transfer in settling:
            transfer.settle(now_s)


class Nic:
    """A bandwidth that transfers share: of a NIC, of the CPU that feeds it, or of a trunk.

    Each is of one direction.
    """

    __slots__ = ("_divided_by", "bytes_per_s", "share", "traffic", "transfers")

    def __init__(self, bytes_per_s: float, traffic: NicTraffic) -> None:
        self.bytes_per_s = bytes_per_s
        self.traffic = traffic
        self.transfers: dict[SharedTransfer, None] = {}
        self.share = bytes_per_s  # bytes/s of each transfer
        self._divided_by = 1

    def divide(self) -> bool:
        """Give each transfer its share; return whether that differs from the one before."""
        num_transfers = max(1, len(self.transfers))
        if num_transfers == self._divided_by:
            return False
        self._divided_by = num_transfers
        self.share = self.bytes_per_s / num_transfers
        return True


class SharedTransfer:
    """A message whose bytes are leaving through shared NICs, at least one, of the same traffic."""

    __slots__ = ("_clock", "_done", "_link", "_rate", "_remaining", "_since", "nics")

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
        self.nics = nics
        self._clock = clock
        self._remaining = num_bytes
        self._link = link_bytes_per_s
        self._done = done
        self._rate = 0.0
        self._since = clock.now_s
        nics[0].traffic.start(self)

    def settle(self, now_s: float) -> None:
        """Subtract the bytes sent so far, and continue at the new rate."""
        rate = self._link
        for nic in self.nics:
            # Faster than `min`, in the innermost loop of simulations with shared NICs.
            if nic.share < rate:  # noqa: PLR1730
                rate = nic.share
        if rate == self._rate:
            return
        self._remaining -= self._rate * (now_s - self._since)
        self._rate, self._since = rate, now_s
        end_s = now_s + max(0.0, self._remaining) / rate  # rounding can leave less than 0 bytes
        self._clock.at(end_s, self._finish, rate, now_s)

    def _finish(self, rate: float, since_s: float) -> None:
        if rate != self._rate or since_s != self._since:
            return  # stale: the rate has changed since this event was scheduled
        self._rate = -1.0  # no pending event of this transfer can match any more
        self.nics[0].traffic.end(self)
        # After the end, for it may start the next transfer of the link.
        self._done()
