"""The protocol of everything that moves arrays between ranks.

A transport never blocks its caller except in `wait`, and every wait has a deadline. Messages
between two ranks with the same tag arrive in the order in which they were sent; messages with
different tags may overtake each other. Receives are best posted before the matching send starts.


A transport whose ranks may go on without those that are lost.

A message that fails because a rank is lost raises a `RankLostError`, on some ranks. They `revoke`,
so that it does on all, and all that are left `shrink`.
"""

from typing import Protocol, runtime_checkable

import jax
import numpy as np

HostOrDeviceArray = np.ndarray | jax.Array


@runtime_checkable
class Sending(Protocol):
    """A message on its way out; the array may not be changed before `wait` returns."""

    def wait(self, *, timeout_s: float) -> float:
        """Return once the array may be reused: since when it may, on `time.perf_counter`.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        ...


@runtime_checkable
class Receiving(Protocol):
    """A message on its way in."""

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        """Return the array, which the caller owns; `jax.device_put` takes it without a copy.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
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
        """How many ranks there are."""
        ...

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` (any shape and dtype, any number of bytes) to the rank `to`."""
        ...

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        ...

    def close(self, *, error: BaseException | None = None) -> None:
        """End this rank's part; with an `error`, end the whole job, this error shown first."""
        ...


@runtime_checkable
class SurvivingTransport(Transport, Protocol):
    """Moves arrays between ranks, and between those that are left when some are lost."""

    def revoke(self, *, timeout_s: float) -> None:
        """Let all that is under way fail, here and on all ranks, and wait until it has."""
        ...

    def shrink(self) -> "tuple[SurvivingTransport, tuple[int, ...]]":
        """Return the transport of all that are left, and which ranks of this one they are."""
        ...

    def narrow(self, *, num_ranks: int) -> "SurvivingTransport | None":
        """Return the transport of the first ranks, and None on the others."""
        ...
