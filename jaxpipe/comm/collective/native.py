"""Native all-reduces: those of the library under a transport, if it has one."""

from typing import Protocol, cast, runtime_checkable

import numpy as np

from jaxpipe.comm.transport import Transport


@runtime_checkable
class NativeAllReduce(Protocol):
    """A transport whose library has an all-reduce."""

    def native_all_reduce(
        self, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
    ) -> np.ndarray:
        """All-reduce `array` over `members`, in place, and return it.

        All members call this in the same order.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the library has no sum for the dtype, or the job was aborted.
        """
        ...


@runtime_checkable
class WrapsNative(Protocol):
    """A transport wrapper that exposes the library of the wrapped one."""

    @property
    def library(self) -> NativeAllReduce | None:
        """The native all-reduce of the wrapped transport, if it has one."""
        ...


def native_of(transport: Transport) -> NativeAllReduce | None:
    """Return the native all-reduce of the transport or of the one that it wraps, else None.

    >>> from jaxpipe.comm.byte_counter import CountingTransport
    >>> from jaxpipe.comm.local import LocalWorld
    >>> native_of(CountingTransport(LocalWorld(1).transport(0))) is None
    True
    """
    # Not `isinstance`, which remembers for a class what it once had.
    if hasattr(transport, "native_all_reduce"):
        return cast(NativeAllReduce, transport)
    return transport.library if isinstance(transport, WrapsNative) else None
