"""One message over MPI: its requests, and the handles that `send` and `receive` return.

A large message is sent as several requests, since not every MPI counts beyond 2**31 bytes.

A jax array that is not computed yet is not sent yet: `MpiMessage.start` checks again later, so that
`send` never waits for the computation.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from jaxpipe.comm.buffer import as_bytes, is_ready
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.mpi.api import MPI, moving_error
from jaxpipe.comm.mpi.native_all_reduce import MpiAllReduce
from jaxpipe.comm.mpi.progress_engine import ProgressEngine
from jaxpipe.comm.transport import HostOrDeviceArray
from jaxpipe.errors import DeadlineError, TransportError

LARGEST_REQUEST_BYTES = 2**24

Begin = Callable[[], list[MPI.Request] | None]


class MpiMessage:
    """The requests of one message, as an operation that `ProgressEngine` drives.

    `begin` returns the requests, or None while the array is still being computed.
    """

    def __init__(self, envelope: Envelope, begin: Begin, *, outgoing: bool):
        self.envelope = envelope
        self.outgoing = outgoing
        self.is_over = False
        self.started_s = math.nan
        self.over_s = math.nan
        self.num_bytes_moved = 0
        self._begin: Begin | None = begin
        self._requests: list[MPI.Request] = []
        self._error: TransportError | None = None

    @property
    def channel(self) -> tuple[int, int, int]:
        """Messages of one channel start in order."""
        return self.envelope.channel

    def start(self) -> bool:
        """Pass the message to MPI, if it is ready."""
        assert self._begin is not None, f"{self.envelope} has started already"
        started_s = time.perf_counter()
        try:
            requests = self._begin()
        except RuntimeError as error:
            self._fail(error)
            return True
        if requests is None:
            return False
        self._requests, self._begin = requests, None
        self.started_s = started_s
        return True

    def test(self) -> bool:
        """Ask MPI whether the message has been moved."""
        if self.is_over:
            return True
        status = MPI.Status()
        try:
            # In order: requests of one message end in the order of their parts.
            while self._requests and self._requests[0].Test(status):
                self.num_bytes_moved += status.Get_count(MPI.BYTE)
                del self._requests[0]
        except MPI.Exception as error:
            self._fail(error)
            return True
        if not self._requests:
            self._end()
        return not self._requests

    def late(self, *, waited_s: float) -> DeadlineError:
        """Return the error of a wait that timed out after `waited_s`."""
        return self.envelope.late(waited_s=waited_s)

    def cancel(self) -> None:
        """Cancel a receive for which no message was sent."""
        for request in self._requests:
            request.Cancel()
            request.Free()

    def raise_if_failed(self) -> None:
        """Raise the error of MPI, if there is one, as a `TransportError`."""
        if self._error is not None:
            raise self._error

    def _fail(self, error: RuntimeError) -> None:
        is_longer = isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_TRUNCATE
        self._error = (
            TransportError(f"got a longer message instead of {self.envelope}")
            if is_longer
            else moving_error(f"could not move {self.envelope}", error)
        )
        self._error.__cause__ = error
        self._begin = None
        self._end()

    def _end(self) -> None:
        self.over_s = time.perf_counter()
        self.is_over = True


def begin_send(comm: MPI.Intracomm, array: HostOrDeviceArray, envelope: Envelope) -> Begin:
    """Return the call that passes `array` to MPI, once computed; host arrays are not copied."""

    def begin() -> list[MPI.Request] | None:
        if not is_ready(array):
            return None
        return [
            comm.Isend([part, MPI.BYTE], dest=envelope.to, tag=envelope.tag)
            for part in _parts(as_bytes(array))
        ]

    return begin


def _parts(view: np.ndarray) -> list[np.ndarray]:
    """Return the bytes in parts that fit into one request; no bytes are one empty part."""
    if view.size <= LARGEST_REQUEST_BYTES:
        return [view]
    starts = range(0, view.size, LARGEST_REQUEST_BYTES)
    return [view[start : start + LARGEST_REQUEST_BYTES] for start in starts]


def begin_receive(comm: MPI.Intracomm, buffer: np.ndarray, envelope: Envelope) -> Begin:
    """Return the call that passes `buffer`, uint8 of shape (num_bytes,), to MPI."""

    def begin() -> list[MPI.Request]:
        return [
            comm.Irecv([part, MPI.BYTE], source=envelope.source, tag=envelope.tag)
            for part in _parts(buffer)
        ]

    return begin


MpiProgress: TypeAlias = ProgressEngine[MpiMessage | MpiAllReduce]
"""The progress engine of one rank."""


@dataclass(frozen=True, slots=True)
class MpiSending:
    """Handle of a send."""

    message: MpiMessage
    progress: MpiProgress

    @property
    def timing(self) -> MpiMessage:
        """The times of the message, which refers to no array once it is over."""
        return self.message

    def wait(self, *, timeout_s: float) -> float:
        """Wait for the send to complete; return its completion time (`time.perf_counter`)."""
        self.progress.wait(self.message, timeout_s=timeout_s)
        self.message.raise_if_failed()
        return self.message.over_s


@dataclass(frozen=True, slots=True)
class MpiReceiving:
    """Handle of a receive into `memory`, which jax takes without a copy."""

    message: MpiMessage
    progress: MpiProgress
    memory: np.ndarray

    @property
    def timing(self) -> MpiMessage:
        """The times of the message, which does not refer to `memory` once it is over."""
        return self.message

    def wait(self, *, timeout_s: float) -> np.ndarray:
        """Wait for the message; return `memory`."""
        self.progress.wait(self.message, timeout_s=timeout_s)
        self.message.raise_if_failed()
        moved, envelope = self.message.num_bytes_moved, self.message.envelope
        # MPI reports a longer message as an error, a shorter one only by its count.
        if moved != envelope.num_bytes:
            raise TransportError(f"got {moved} bytes instead of {envelope}")
        return self.memory
