"""Messages between stages of a paced rank: each as large as the boundary that it crosses has it."""

import jax
import numpy as np

from jaxpipe.comm import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.paced.scale import Scale
from jaxpipe.simulate.engine.step_model import StepModel


class BoundaryMessages(ForwardingTransport):
    """Cuts each array to the bytes of a message between its two ranks; its values do not matter.

    A plan may have a codec for each boundary, and a paced stage has one array for all of them.
    """

    def __init__(self, transport: Transport, job: StepModel, scale: Scale) -> None:
        super().__init__(transport)
        self._job, self._scale = job, scale

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send the bytes of a message to the rank `to`."""
        part = np.asarray(array)[: self._num_bytes(self.rank, to)]
        return self._transport.send(part, to=to, tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive the bytes of a message from the rank `source`."""
        part = jax.ShapeDtypeStruct((self._num_bytes(source, self.rank),), like.dtype)
        return self._transport.receive(part, source=source, tag=tag)

    def _num_bytes(self, source: int, destination: int) -> int:
        return self._scale.num_bytes(self._job.message_bytes(source, destination))
