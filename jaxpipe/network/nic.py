"""Shared NICs: transfers that enter or leave a host at the same time divide its NIC evenly.

A transfer runs at the rate of its link or at its share of one of the NICs on its path, whichever is
the least. The trunk between two regions is shared in the same way::

    rate = min(link, egress / transfers leaving, ingress / transfers entering, trunk / transfers)

Whenever transfers start or end, the rates of all transfers at the same NICs change, once for all
that start and end at one time: where one message follows another, none changes. The part of its
share that a transfer cannot use, because another limit slows it down, stays unused: TCP flows do
not discover it in time.

Before a NIC there may be a token bucket: while it has tokens, the NIC limits nothing. They fill at
its rate, and what leaves takes them::

    tokens      burst ┐        ┌─ burst          a silence fills the bucket
                      └┐    ┌──┘
                   0   └────┘
    bytes/s      link  │rate│  0
"""

from collections.abc import Callable
from math import inf

from jaxpipe.network.event_queue import Clock

_ROUNDING = 1e-9


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

    def empty(self, nic: "Nic") -> None:
        """Divide the rate of a NIC whose bucket has run out of tokens."""
        self._change((nic,))

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
            if nic.divide(now_s):
                settling.update(nic.transfers)
        for transfer in settling:
            transfer.settle(now_s)
        # A NIC that has lost a transfer, too: the others empty its bucket later than foreseen.
        passed = changed | {nic: None for transfer in settling for nic in transfer.nics}
        for nic in passed:
            if nic.bucket is not None:
                nic.foresee_empty(self._clock)


class Nic:
    """A bandwidth that transfers share: of a NIC, of the CPU that feeds it, or of a trunk.

    Each is of one direction. After a silence `burst_bytes` leave as fast as links carry them.
    """

    __slots__ = ("bucket", "bytes_per_s", "share", "traffic", "transfers")

    def __init__(
        self, bytes_per_s: float, traffic: NicTraffic, *, burst_bytes: float = 0.0
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.traffic = traffic
        self.transfers: dict[SharedTransfer, None] = {}
        self.bucket = BucketLevel(bytes_per_s, burst_bytes) if burst_bytes else None
        self.share = inf if self.bucket else bytes_per_s  # bytes/s of each transfer

    def divide(self, now_s: float) -> bool:
        """Give each transfer its share; return whether that differs from the one before."""
        before = self.share
        if self.bucket is not None and self.bucket.has_tokens(now_s):
            self.share = inf
        else:
            self.share = self.bytes_per_s / max(1, len(self.transfers))
        return self.share != before

    def foresee_empty(self, clock: Clock) -> None:
        """Divide the rate when the bucket will be empty, if what leaves does not change before."""
        assert self.bucket is not None, "only a NIC with a bucket runs out of tokens"
        bucket, excess = self.bucket, self.bucket.bytes_per_s - self.bytes_per_s
        if self.share == inf and excess > 0:
            empty_s = clock.now_s + bucket.tokens_at(clock.now_s) / excess
            clock.at(empty_s, self._empty, bucket.since_s, bucket.bytes_per_s, empty_s)

    def _empty(self, since_s: float, bytes_per_s: float, empty_s: float) -> None:
        assert self.bucket is not None, "only a NIC with a bucket runs out of tokens"
        if (since_s, bytes_per_s) == (self.bucket.since_s, self.bucket.bytes_per_s):
            self.bucket.drain(empty_s)
            self.traffic.empty(self)


class BucketLevel:
    """The tokens of a NIC, in bytes: they fill at its rate, and `bytes_per_s` leaves since then."""

    __slots__ = ("_burst", "_filling", "_tokens", "bytes_per_s", "since_s")

    def __init__(self, filling_bytes_per_s: float, burst_bytes: float) -> None:
        self._filling, self._burst, self._tokens = filling_bytes_per_s, burst_bytes, burst_bytes
        self.bytes_per_s, self.since_s = 0.0, 0.0

    def tokens_at(self, now_s: float) -> float:
        """Return the tokens at a time, if what leaves stays as it is."""
        gained = (self._filling - self.bytes_per_s) * (now_s - self.since_s)
        return min(self._burst, max(0.0, self._tokens + gained))

    def has_tokens(self, now_s: float) -> bool:
        """Return whether there are tokens at a time, apart from what rounding leaves."""
        return self.tokens_at(now_s) > _ROUNDING * self._burst

    def change(self, bytes_per_s: float, now_s: float) -> None:
        """Add to what leaves."""
        self._tokens, self.since_s = self.tokens_at(now_s), now_s
        # Rounding: what has all ended leaves nothing.
        self.bytes_per_s = max(0.0, self.bytes_per_s + bytes_per_s)

    def drain(self, now_s: float) -> None:
        """Set the tokens to none, which a sum of rounded numbers may miss."""
        self._tokens, self.since_s = 0.0, now_s


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
        self._count(rate - self._rate, now_s)
        self._rate, self._since = rate, now_s
        end_s = now_s + max(0.0, self._remaining) / rate  # rounding can leave less than 0 bytes
        self._clock.at(end_s, self._finish, rate, now_s)

    def _finish(self, rate: float, since_s: float) -> None:
        if rate != self._rate or since_s != self._since:
            return  # stale: the rate has changed since this event was scheduled
        self._count(-rate, self._clock.now_s)
        self._rate = -1.0  # no pending event of this transfer can match any more
        self.nics[0].traffic.end(self)
        # After the end, for it may start the next transfer of the link.
        self._done()

    def _count(self, bytes_per_s: float, now_s: float) -> None:
        """Tell the buckets on the path that more leaves, or less."""
        for nic in self.nics:
            if nic.bucket is not None:
                nic.bucket.change(bytes_per_s, now_s)
