"""The interface to NCCL, which several packages and a fake one implement; `export` is for them."""

from typing import Protocol, runtime_checkable

import jax


@runtime_checkable
class Done(Protocol):
    """An event that was recorded on a stream."""

    def is_done(self) -> bool:
        """Return whether everything launched on the stream before it has completed."""
        ...


@runtime_checkable
class NcclChannel(Protocol):
    """A communicator of two ranks with a stream of its own, for one direction between them.

    Operations run in the order of their launches, each once the other rank has launched its
    counterpart: the n-th send matches the n-th receive. No call waits for the GPU; one thread calls
    at a time.
    """

    def send(self, array: jax.Array) -> Done:
        """Launch the sending of the bytes of `array`, once it is computed."""
        ...

    def receive(self, buffer: jax.Array) -> Done:
        """Launch the receiving into the memory of `buffer`, once that is computed."""
        ...

    def close(self) -> None:
        """Destroy the communicator; both ranks call this, after all messages."""
        ...

    def abort(self) -> None:
        """Abort the communicator now, with all pending messages."""
        ...


@runtime_checkable
class NcclBinding(Protocol):
    """A Python package that calls NCCL, for one device."""

    def unique_id(self) -> bytes:
        """Return the id of a new channel; one rank creates it and sends it to the other."""
        ...

    def connect(self, *, unique_id: bytes, is_sender: bool) -> NcclChannel:
        """Create one end of a channel; waits until the other rank creates the other end."""
        ...


def export(array: jax.Array, *, stream: int) -> tuple[int, int, object]:
    """Return address and size in bytes of the array, and the object that keeps its memory alive.

    DLPack's handshake makes the stream (a `cudaStream_t` as a number) wait until jax has computed
    the array; the host does not wait. Messages are bytes, since NCCL has fewer dtypes than jax.
    """
    capsule = array.__dlpack__(stream=stream)  # pyright: ignore[reportCallIssue]  the stub forgets it
    return array.unsafe_buffer_pointer(), array.nbytes, (array, capsule)
