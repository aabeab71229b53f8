"""Base of the transports that change some calls of another one."""

import jax

from jaxpipe.comm.collective.native import NativeAllReduce, native_of
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport


class ForwardingTransport:
    """Forwards all calls, and offers the native all-reduce of the wrapped transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self._transport.num_ranks

    @property
    def library(self) -> NativeAllReduce | None:
        """The native all-reduce of the wrapped transport, if it has one; it bypasses the calls."""
        return native_of(self._transport)

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to`."""
        return self._transport.send(array, to=to, tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        return self._transport.receive(like, source=source, tag=tag)

    def close(self, *, error: BaseException | None = None) -> None:
        """Close this rank's end; with an `error`, end the whole job and show this error first."""
        self._transport.close(error=error)
