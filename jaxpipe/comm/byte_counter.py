"""Transport wrapper that counts the bytes sent to each rank."""

from collections import Counter
from threading import Lock

import jax

from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.native import NativeAllReduce, native_of
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport


class CountingTransport:
    """Forwards all calls; `num_bytes_sent` grows with each message of this rank.

    Any thread may send. Native all-reduces of the wrapped transport are not counted.

    >>> from jaxpipe.comm.local import LocalWorld
    >>> counted = CountingTransport(LocalWorld(1).transport(0))
    >>> sending = counted.send(jax.numpy.zeros(3), to=0, tag=0)
    >>> counted.num_bytes_sent
    12
    """

    def __init__(self, transport: Transport):
        self._transport = transport
        self._num_bytes_to: Counter[int] = Counter()
        self._lock = Lock()

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self._transport.num_ranks

    @property
    def num_bytes_sent(self) -> int:
        """The bytes that this rank has sent, to itself included."""
        return self.num_bytes_to().total()

    def num_bytes_to(self) -> Counter[int]:
        """Return the bytes sent to each rank so far."""
        with self._lock:
            return self._num_bytes_to.copy()

    @property
    def library(self) -> NativeAllReduce | None:
        """The native all-reduce of the wrapped transport, if it has one."""
        return native_of(self._transport)

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Count the bytes of `array`, and start to send it to the rank `to`."""
        num_bytes = num_bytes_of(array)
        # Gradient syncs send from threads of their own; `+=` on a counter is not atomic.
        with self._lock:
            self._num_bytes_to[to] += num_bytes
        return self._transport.send(array, to=to, tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        return self._transport.receive(like, source=source, tag=tag)

    def close(self, *, error: BaseException | None = None) -> None:
        """Close this rank's end; with an `error`, end the whole job and show this error first."""
        self._transport.close(error=error)
