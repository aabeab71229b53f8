"""One rank's part of a collective: its messages, each sent once those it waits for have arrived.

::

    transfer       waits for           leaves
    0: 3 -> 2      rank 3 to join      at once
    1: 2 -> 1      0, rank 2 to join   when 0 arrives
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import jax
import numpy as np

from jaxpipe.collective import Collective
from jaxpipe.comm import Receiving
from jaxpipe.paced.paced_transport import PacedTransport
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import VirtualClock


@dataclass(slots=True, kw_only=True)
class CollectiveExchange:
    """The sends and receives of one rank in a running collective.

    `done` is called with the virtual time at which all receives have arrived and all sends are
    posted, `failed` with the error of a message that could not be moved; by any thread.
    """

    collective: Collective
    transport: PacedTransport
    pace: VirtualClock
    scale: Scale
    tag: int
    timeout_s: float
    done: Callable[[float], None]
    failed: Callable[[BaseException], None]
    _lock: Lock = field(default_factory=Lock)
    _needs: dict[int, int] = field(default_factory=dict)
    _ready_s: dict[int, float] = field(default_factory=dict)
    _users: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _num_open: int = 0
    _due_s: float = 0.0

    def begin(self) -> None:
        """Join the collective, and return at once."""
        rank, due_s = self.transport.rank, self.pace.now()
        sends = [n for n, transfer in enumerate(self.collective) if transfer.source == rank]
        receives = [n for n, transfer in enumerate(self.collective) if transfer.destination == rank]
        assert sends or receives, f"rank {rank} is not a member of this collective"
        for number in sends:
            after = self.collective[number].after
            self._needs[number] = 1 + len(after)  # 1 for joining itself
            for need in after:
                self._users[need].append(number)
        self._num_open = len(sends) + len(receives)
        # Announces this rank: from here on the others may send to it.
        self.transport.join(tag=self.tag)
        for number in receives:
            transfer = self.collective[number]
            num_bytes = self.scale.num_bytes(transfer.num_bytes)
            self.transport.receive_then(
                jax.ShapeDtypeStruct((num_bytes,), np.dtype(np.uint8)),
                source=transfer.source,
                tag=self.tag,
                then=partial(self._take, number),
            )
        # Last: the conditions of all sends have to be known before the first one leaves.
        for number in sends:
            self._satisfy(number, due_s=due_s)

    def _take(self, number: int, message: Receiving, due_s: float) -> None:
        try:
            message.wait(timeout_s=self.timeout_s)
            for user in self._users[number]:
                self._satisfy(user, due_s=due_s)
            self._close_one(due_s=due_s)
        except BaseException as error:
            self.failed(error)
            raise

    def _satisfy(self, number: int, *, due_s: float) -> None:
        """Send a transfer if this was the last condition that it waited for."""
        with self._lock:
            self._needs[number] -= 1
            # The latest condition counts: threads may meet them in another order than virtual time.
            ready_s = max(due_s, self._ready_s.get(number, 0.0))
            self._ready_s[number] = ready_s
            if self._needs[number]:
                return
        transfer = self.collective[number]
        payload = np.zeros(self.scale.num_bytes(transfer.num_bytes), np.uint8)
        # Outside of the lock: sending may block, and other threads satisfy transfers meanwhile.
        with self.pace.at(ready_s):
            self.transport.send(payload, to=transfer.destination, tag=self.tag)
        self._close_one(due_s=ready_s)

    def _close_one(self, *, due_s: float) -> None:
        with self._lock:
            self._num_open -= 1
            self._due_s = max(self._due_s, due_s)
            is_over = not self._num_open
        # Outside of the lock, and by the one thread that has counted to 0: `done` is called once.
        if is_over:
            self.done(self._due_s)
