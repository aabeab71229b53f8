"""The all-reduce of a transport's own library, where it has one."""

from typing import Protocol, runtime_checkable

import numpy as np

from jaxpipe.comm.transport import Transport


@runtime_checkable
class SumsInLibrary(Protocol):
    """What sums arrays by itself."""

    def sum_in_library(
        self, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
    ) -> np.ndarray:
        """Sum `array` over `members`, in place, and return it; all of them sum in the same order.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the library cannot sum it, or the job was aborted.
        """
        ...


@runtime_checkable
class WrapsLibrary(Protocol):
    """A transport around another one, whose library it lends."""

    @property
    def library(self) -> SumsInLibrary | None:
        """The library of the transport inside, if it has one."""
        ...


def library_of(transport: Transport) -> SumsInLibrary | None:
    """Return what sums arrays on behalf of the transport, or of the one that it wraps.

    >>> from jaxpipe.comm.byte_counter import CountedTransport
    >>> from jaxpipe.comm.local import LocalWorld
    >>> library_of(CountedTransport(LocalWorld(1).transport(0))) is None
    True
    """
    if isinstance(transport, SumsInLibrary):
        return transport
    return transport.library if isinstance(transport, WrapsLibrary) else None
