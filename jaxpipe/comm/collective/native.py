"""The all-reduce of a transport's own library, where it has one."""

from typing import Protocol, runtime_checkable

import numpy as np

from jaxpipe.comm.transport import Transport


@runtime_checkable
class NativeAllReduce(Protocol):
    """What sums arrays by itself."""

    def native_all_reduce(
        self, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
    ) -> np.ndarray:
        """Sum `array` over `members`, in place, and return it; all of them sum in the same order.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the library cannot sum it, or the job was aborted.
        """
        ...


@runtime_checkable
class WrapsNative(Protocol):
    """A transport around another one, whose library it lends."""

    @property
    def library(self) -> NativeAllReduce | None:
        """The library of the transport inside, if it has one."""
        ...


def native_of(transport: Transport) -> NativeAllReduce | None:
    """Return what sums arrays on behalf of the transport, or of the one that it wraps.

    >>> from jaxpipe.comm.byte_counter import CountingTransport
    >>> from jaxpipe.comm.local import LocalWorld
    >>> native_of(CountingTransport(LocalWorld(1).transport(0))) is None
    True
    """
    if isinstance(transport, NativeAllReduce):
        return transport
    return transport.library if isinstance(transport, WrapsNative) else None
