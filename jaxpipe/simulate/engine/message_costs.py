"""A wire: how one kind of message uses the network.

The network says what a link can carry; a wire says what the software makes of it. Activations that
are sent one by one and gradients that stream in chunks see the same links differently::

    window 1      ├ overhead ┼ bytes / rate ┼ latency ┤├ overhead ┼ ...     a rendezvous each
    window None   ├ overhead ┼ bytes / rate ┼ latency ┤
                             ├ overhead ┼ bytes / rate ┼ latency ┤          back to back
"""

from dataclasses import dataclass
from math import inf

from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCosts:
    """What a kind of message gets of a link that leaves its host.

    A message holds its link for `overhead_s` and then for its bytes, at the link's bandwidth but no
    faster than `flow_bytes_per_s`; it arrives a latency later. At most `window` messages of a link
    are on their way at once, and at most `num_buffers` are on their way or have arrived without
    having been received (None: any number). All such messages that enter a host at once share
    `host_bytes_per_s`, and so do those that leave it, besides what its NIC allows. Inside a host
    only the link's own latency and bandwidth count, and `num_buffers`.

    Raises:
        PlanError: a number is out of its range.
    """

    overhead_s: float = 0.0
    flow_bytes_per_s: float = inf
    host_bytes_per_s: float = inf
    window: int | None = None
    num_buffers: int | None = None

    def __post_init__(self) -> None:
        if not self.overhead_s >= 0:
            raise PlanError(f"time passes: `overhead_s` is {self.overhead_s}; make it 0 or more")
        for field in ("flow_bytes_per_s", "host_bytes_per_s"):
            if not getattr(self, field) > 0:
                raise PlanError(f"bytes move: `{field}` is {getattr(self, field)}; make it above 0")
        for field in ("window", "num_buffers"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise PlanError(f"a message can be sent: `{field}` is {value}; make it at least 1")
