"""One message over NCCL, and the handles that `send` and `receive` return."""

import math
import time
from dataclasses import dataclass
from threading import Event

import jax
import numpy as np

from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.nccl.binding import Done
from jaxpipe.comm.transport import HostOrDeviceArray
from jaxpipe.errors import TransportError


class NcclMessage:
    """An array to send, or the memory to receive into, until the launcher completes it."""

    def __init__(self, envelope: Envelope, array: jax.Array) -> None:
        self.envelope = envelope
        self.array = array
        self.over = Event()
        self.over_s = math.nan
        self.done: Done | None = None
        self.error: TransportError | None = None

    def is_done(self) -> bool:
        """Return whether a launched message has been moved; errors of NCCL are raised."""
        return self.done is None or self.done.is_done()

    def end(self, error: TransportError | None = None) -> None:
        """Complete the message, with this error if there is one, and wake its waiters."""
        self.error = self.error or error  # the first one tells more
        self.over_s = time.perf_counter()
        self.over.set()

    def wait(self, *, timeout_s: float) -> None:
        """Wait until it is complete.

        Raises:
            DeadlineError: it is not after `timeout_s`.
            TransportError: it could not be moved.
        """
        if not self.over.wait(timeout_s):
            raise self.envelope.late(waited_s=timeout_s)
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, slots=True)
class NcclSending:
    """Handle of a send."""

    message: NcclMessage

    def wait(self, *, timeout_s: float) -> float:
        """Wait for the send to complete; return its completion time (`time.perf_counter`)."""
        self.message.wait(timeout_s=timeout_s)
        return self.message.over_s


@dataclass(frozen=True, slots=True)
class NcclReceiving:
    """Handle of a receive."""

    message: NcclMessage
    like: jax.ShapeDtypeStruct

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        """Wait for the message; return its array, on the host if jax does not have the dtype."""
        self.message.wait(timeout_s=timeout_s)
        array = self.message.array
        if array.dtype == self.like.dtype:
            return array
        return np.array(array).view(self.like.dtype).reshape(self.like.shape)
