"""Message costs: how software uses a link for one kind of message.

The cluster says what a link can carry; these costs say how much of it a kind of message gets.
Activations that are sent one by one and gradients that stream in chunks use the same link
differently::

    window 1      ├ overhead ┼ bytes / rate ┼ latency ┤├ overhead ┼ ...     a rendezvous each
    window None   ├ overhead ┼ bytes / rate ┼ latency ┤
                             ├ overhead ┼ bytes / rate ┼ latency ┤          back to back

With `restart_bytes` each link is a TCP connection, or several, that starts slowly after it was idle
(`jaxpipe.network.congestion_window`). With `eager_bytes` the rest of a message waits until its
receive is posted::

    sender     ├ overhead ┼ eager bytes ┤          ├ rest ┤
    receiver          computes        │ posts a receive   │ continues
"""

from dataclasses import dataclass
from math import inf

from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCosts:
    """Overhead, rate limits, window and buffers of the messages between two hosts.

    A message occupies its link for `overhead_s` and then for its bytes, at the link's bandwidth but
    no faster than `flow_bytes_per_s`; it arrives one latency later. At most `window` messages of a
    link are in flight, and at most `num_buffers` are in flight or have arrived and are not yet
    received (None: no limit). After a long idle time the link sends `restart_bytes` in the first
    round trip, twice as many in the next, and never more than `largest_window_bytes` (None: it is
    never idle). Until its receive is posted, at most `eager_bytes` of a message leave; the rest
    follows when the receiver's request, which takes a latency, has come. The messages of this kind
    that enter a host at the same time share `host_bytes_per_s`, as do those that leave it, in
    addition to the limit of its NIC. Inside a host only the link's own latency and bandwidth
    count, `num_buffers` and `eager_bytes`.

    Raises:
        PlanError: a number is out of its range.
    """

    overhead_s: float = 0.0
    flow_bytes_per_s: float = inf
    host_bytes_per_s: float = inf
    window: int | None = None
    num_buffers: int | None = None
    restart_bytes: float | None = None
    largest_window_bytes: float = inf
    eager_bytes: float = inf

    def __post_init__(self) -> None:
        if not self.overhead_s >= 0:
            raise PlanError(f"`overhead_s` must be 0 or more, not {self.overhead_s}")
        for field in ("flow_bytes_per_s", "host_bytes_per_s", "largest_window_bytes"):
            if not getattr(self, field) > 0:
                raise PlanError(f"`{field}` must be above 0, not {getattr(self, field)}")
        if self.restart_bytes is not None and not self.restart_bytes > 0:
            raise PlanError(f"`restart_bytes` must be above 0, or None, not {self.restart_bytes}")
        if not self.eager_bytes >= 0:
            raise PlanError(f"`eager_bytes` must be 0 or more, not {self.eager_bytes}")
        for field in ("window", "num_buffers"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise PlanError(f"`{field}` must be at least 1, or None for no limit, not {value}")
            if value is not None and self.eager_bytes < inf:
                # Both count whole messages, not the two parts of one.
                raise PlanError(
                    f"`{field}` must be None with a limit of `eager_bytes`, not {value}; leave out "
                    "one of them"
                )
