"""NCCL through CuPy's binding, if `nccl4py` is not installed. Not run between GPUs yet.

On one H200 (CuPy 14.2, NCCL 2.28.3) these calls moved an array of jax to memory of jax and back to
its own rank; a communicator of two ranks takes two GPUs.

Written from its documentation: docs.cupy.dev, `cupy.cuda.nccl`, `cupy.cuda.Stream` and `Event`.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax

from jaxpipe.comm.nccl.binding import export


class CupyBinding:
    """NCCL for the GPU with this id; raises ImportError without `cupy` and its NCCL."""

    def __init__(self, device_id: int) -> None:
        self._cuda: Any = import_module("cupy.cuda")
        self._nccl: Any = import_module("cupy.cuda.nccl")
        self._device_id = device_id

    def unique_id(self) -> bytes:
        """Return a new unique id."""
        return bytes(self._nccl.get_unique_id())

    def connect(self, *, unique_id: bytes, is_sender: bool) -> "CupyChannel":
        """Create one end of a channel: the sender is rank 0 of the two."""
        with self._cuda.Device(self._device_id):
            rank = 0 if is_sender else 1
            communicator = self._nccl.NcclCommunicator(2, unique_id, rank)
            stream = self._cuda.Stream(non_blocking=True)
        return CupyChannel(self._cuda, self._nccl, self._device_id, communicator, stream)


class CupyChannel:
    """A communicator of two and its stream."""

    def __init__(
        self, cuda: Any, nccl: Any, device_id: int, communicator: Any, stream: Any
    ) -> None:
        self._cuda, self._nccl, self._device_id = cuda, nccl, device_id
        self._communicator, self._stream = communicator, stream

    def send(self, array: jax.Array) -> "_Recorded":
        """Launch the sending of the bytes of `array`, once it is computed."""
        return self._launch(self._communicator.send, array, peer=1)

    def receive(self, buffer: jax.Array) -> "_Recorded":
        """Launch the receiving into the memory of `buffer`, once that is computed."""
        return self._launch(self._communicator.recv, buffer, peer=0)

    def close(self) -> None:
        """Destroy the communicator."""
        self._communicator.destroy()

    def abort(self) -> None:
        """Abort the communicator now."""
        self._communicator.abort()

    def _launch(self, call: Any, array: jax.Array, *, peer: int) -> "_Recorded":
        with self._cuda.Device(self._device_id):
            address, num_bytes, alive = export(array, stream=self._stream.ptr)
            call(address, num_bytes, self._nccl.NCCL_UINT8, peer, self._stream.ptr)
            event = self._cuda.Event(disable_timing=True)
            event.record(self._stream)
        return _Recorded(event, alive)


@dataclass(frozen=True, slots=True)
class _Recorded:
    event: Any
    alive: object

    def is_done(self) -> bool:
        return bool(self.event.done)
