"""The protocols of transports, which move arrays between ranks.

A transport never blocks its caller except in `wait`, and every wait has a deadline. Messages
between two ranks with the same tag arrive in the order in which they were sent; messages with
different tags may overtake each other. Receives are best posted before the matching send starts.

A `SurvivingTransport` can continue without lost ranks. A message that fails because a rank is lost
raises a `RankLostError`, on some ranks only. These call `revoke`, after which all ranks get the
error, and all that are left call `shrink`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import jax
import numpy as np

HostOrDeviceArray = np.ndarray | jax.Array


@runtime_checkable
class Sending(Protocol):
    """A message on its way out; the array may not be changed before `wait` returns."""

    def wait(self, *, timeout_s: float) -> float:
        """Wait for the send to complete; return its completion time (`time.perf_counter`).

        Raises:
            DeadlineError: the message took longer than `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        ...


@runtime_checkable
class Receiving(Protocol):
    """A message on its way in."""

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        """Wait for the message; return the array, which the caller owns and jax can alias.

        Raises:
            DeadlineError: the message took longer than `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """Moves arrays between the ranks `0 .. num_ranks - 1`."""

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        ...

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        ...

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` (any shape and dtype, any number of bytes) to the rank `to`."""
        ...

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        ...

    def close(self, *, error: BaseException | None = None) -> None:
        """Close this rank's end; with an `error`, end the whole job and show this error first."""
        ...


@runtime_checkable
class SurvivingTransport(Transport, Protocol):
    """A transport that can continue with the remaining ranks when some are lost."""

    def revoke(self, *, timeout_s: float) -> None:
        """Make all pending messages fail, on all ranks, and wait until they have."""
        ...

    def shrink(self) -> "tuple[SurvivingTransport, tuple[int, ...]]":
        """Return the transport of the remaining ranks, and their ranks in this one."""
        ...

    def among(self, ranks: Sequence[int]) -> "SurvivingTransport | None":
        """Return the transport of some ranks, numbered in this order, and None on the others."""
        ...


@contextmanager
def closing(transport: Transport) -> Iterator[None]:
    """Close a transport after the block; an error of the block ends all ranks.

    Ctrl-C as well: the other ranks would wait for this one until their timeout.
    """
    try:
        yield
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()
