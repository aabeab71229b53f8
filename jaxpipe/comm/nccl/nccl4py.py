"""NCCL through `nccl4py`, the binding that NVIDIA maintains. Not run on a GPU yet.

Written from its documentation: docs.nvidia.com/deeplearning/nccl/user-guide/docs/nccl4py.html, and
nvidia.github.io/cuda-python/cuda-core for streams and events.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax

from jaxpipe.comm.nccl.binding import export


class Nccl4pyBinding:
    """NCCL for the GPU with this id; raises ImportError without `nccl4py` and `cuda-core`."""

    def __init__(self, device_id: int) -> None:
        self._nccl: Any = import_module("nccl.core")
        self._cuda: Any = import_module("cuda.core")
        self._device: Any = self._cuda.Device(device_id)

    def unique_id(self) -> bytes:
        """Return a new unique id."""
        return bytes(self._nccl.get_unique_id())

    def connect(self, *, unique_id: bytes, is_sender: bool) -> "Nccl4pyChannel":
        """Create one end of a channel: the sender is rank 0 of the two."""
        self._device.set_current()
        communicator = self._nccl.Communicator.init(
            2, 0 if is_sender else 1, self._nccl.UniqueId.from_bytes(unique_id)
        )
        return Nccl4pyChannel(self._cuda, self._device, communicator, is_sender=is_sender)


class Nccl4pyChannel:
    """A communicator of two and its stream."""

    def __init__(self, cuda: Any, device: Any, communicator: Any, *, is_sender: bool) -> None:
        self._cuda, self._device, self._communicator = cuda, device, communicator
        self._peer = 1 if is_sender else 0
        self._stream: Any = device.create_stream()

    def send(self, array: jax.Array) -> "_Recorded":
        """Launch the sending of the bytes of `array`, once it is computed."""
        return self._launch(self._communicator.send, array)

    def receive(self, buffer: jax.Array) -> "_Recorded":
        """Launch the receiving into the memory of `buffer`, once that is computed."""
        return self._launch(self._communicator.recv, buffer)

    def close(self) -> None:
        """Destroy the communicator."""
        self._device.set_current()
        self._communicator.destroy()
        self._stream.close()

    def abort(self) -> None:
        """Abort the communicator now."""
        self._device.set_current()
        self._communicator.abort()

    def _launch(self, call: Any, array: jax.Array) -> "_Recorded":
        self._device.set_current()  # the current device is a property of the calling thread
        address, num_bytes, alive = export(array, stream=int(self._stream.handle))
        memory = self._cuda.Buffer.from_handle(address, num_bytes, owner=alive)
        call(memory, self._peer, stream=self._stream)
        return _Recorded(self._stream.record(), alive)


@dataclass(frozen=True, slots=True)
class _Recorded:
    event: Any
    alive: object

    def is_done(self) -> bool:
        return bool(self.event.is_done)
