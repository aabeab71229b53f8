"""Transport wrapper that counts the bytes sent to each rank."""

from collections import Counter
from threading import Lock

from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.comm.tags import NUM_MESSAGE_TAGS
from jaxpipe.comm.transport import HostOrDeviceArray, Sending, Transport


class CountingTransport(ForwardingTransport):
    """Forwards all calls; `num_bytes_sent` grows with each message of this rank.

    `num_stage_bytes_sent` grows with those between stages alone. Any thread may send. Native
    all-reduces of the wrapped transport are not counted.

    >>> import numpy as np
    >>> from jaxpipe.comm.local import LocalWorld
    >>> counted = CountingTransport(LocalWorld(1).transport(0))
    >>> sending = counted.send(np.zeros(3, np.float32), to=0, tag=0)
    >>> counted.num_bytes_sent
    12
    """

    def __init__(self, transport: Transport):
        super().__init__(transport)
        self._num_bytes_to: Counter[int] = Counter()
        self.num_stage_bytes_sent = 0
        self._lock = Lock()

    @property
    def num_bytes_sent(self) -> int:
        """The bytes that this rank has sent, to itself included."""
        return self.num_bytes_to().total()

    def num_bytes_to(self) -> Counter[int]:
        """Return the bytes sent to each rank so far."""
        with self._lock:
            return self._num_bytes_to.copy()

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Count the bytes of `array`, and start to send it to the rank `to`."""
        num_bytes = num_bytes_of(array)
        # Gradient syncs send from threads of their own; `+=` on a counter is not atomic.
        with self._lock:
            self._num_bytes_to[to] += num_bytes
            if tag < NUM_MESSAGE_TAGS:
                self.num_stage_bytes_sent += num_bytes
        return self._transport.send(array, to=to, tag=tag)
