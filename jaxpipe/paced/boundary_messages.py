"""Messages between stages of a paced rank: with the bytes of their boundary, and its coding."""

from concurrent.futures import Future
from dataclasses import dataclass

import jax
import numpy as np

from jaxpipe.comm import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.errors import DeadlineError
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import VirtualClock
from jaxpipe.simulate.engine.step_model import StepModel


class BoundaryMessages(ForwardingTransport):
    """Cuts each array to the bytes of a message between its two ranks; its values do not matter.

    A plan may have a codec for each boundary, and a paced stage has one array for all of them. With
    a codec, a thread sleeps as long as encoding takes before it sends, one message after the other,
    and the receiver sleeps as long as decoding takes.
    """

    def __init__(
        self, transport: Transport, job: StepModel, scale: Scale, *, clock: VirtualClock
    ) -> None:
        super().__init__(transport)
        self._job, self._scale, self._clock = job, scale, clock
        self._encoder = SerialExecutor(name=f"encode {transport.rank}") if job.coding else None

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send the bytes of a message to the rank `to`."""
        part = np.asarray(array)[: self._num_bytes(self.rank, to)]
        seconds = self._job.coding_of(self.rank, to).encode_s
        if seconds == 0 or self._encoder is None:
            return self._transport.send(part, to=to, tag=tag)
        if self._job.blocking:
            self._clock.sleep(seconds)
            return self._transport.send(part, to=to, tag=tag)
        sent_s = self._clock.now()

        def encode_and_send() -> Sending:
            self._clock.reach(sent_s)
            self._clock.sleep(seconds)
            return self._transport.send(part, to=to, tag=tag)

        return _Encoding(self._encoder.begin(encode_and_send))

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive the bytes of a message from the rank `source`."""
        part = jax.ShapeDtypeStruct((self._num_bytes(source, self.rank),), like.dtype)
        receiving = self._transport.receive(part, source=source, tag=tag)
        seconds = self._job.coding_of(source, self.rank).decode_s
        return receiving if seconds == 0 else _Decoding(receiving, seconds, self._clock)

    def stop(self, *, timeout_s: float) -> None:
        """End the encoding thread once it has sent everything."""
        if self._encoder is not None:
            self._encoder.close(timeout_s=timeout_s)

    def _num_bytes(self, source: int, destination: int) -> int:
        return self._scale.num_bytes(self._job.message_bytes(source, destination))


@dataclass(frozen=True, slots=True)
class _Encoding:
    started: Future[Sending]

    def wait(self, *, timeout_s: float) -> float:
        try:
            sending = self.started.result(timeout_s)
        except TimeoutError as error:
            raise DeadlineError(f"timed out after {timeout_s:.1f} s of paced encoding") from error
        return sending.wait(timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class _Decoding:
    receiving: Receiving
    seconds: float
    clock: VirtualClock

    def wait(self, *, timeout_s: float) -> np.ndarray:
        values = self.receiving.wait(timeout_s=timeout_s)
        self.clock.sleep(self.seconds)
        return np.asarray(values)
