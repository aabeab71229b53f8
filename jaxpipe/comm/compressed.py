"""Transport wrapper that compresses messages to and from selected peers."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import jax
import numpy as np

from jaxpipe.collective.codec.codec import Codec
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.wire_format import is_codable
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.errors import DeadlineError, TransportError


class CompressedTransport(ForwardingTransport):
    """Encodes floating-point arrays to and from the peers in `codecs`; forwards all other messages.

    Only float32 and smaller types are encoded: float64 is for times and counts, which must be
    exact. `encodes` decides; a certificate, which computes in float64, encodes that, too.

    Both ends of a link must use the same codec. There is no error feedback: use this for
    activations and their gradients, not for all-reduces (see `WireFormat.far`). A thread waits
    until a jax array is computed and encodes it, so `send` returns at once; `wait` on the receiver
    decodes.

    >>> from jaxpipe.collective.codec.bfloat16 import Bfloat16Codec
    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     coded = CompressedTransport(transport, {1 - transport.rank: Bfloat16Codec()})
    ...     like = jax.ShapeDtypeStruct((1,), np.float32)
    ...     receiving = coded.receive(like, source=1 - transport.rank, tag=0)
    ...     sending = coded.send(np.array([3.14159], np.float32), to=1 - transport.rank, tag=0)
    ...     got = receiving.wait(timeout_s=1.0)
    ...     sending.wait(timeout_s=1.0)
    ...     coded.close()
    ...     return got
    >>> run_ranks(2, work)[0]
    array([3.140625], dtype=float32)
    """

    def __init__(
        self, transport: Transport, codecs: Mapping[int, Codec], *, close_timeout_s: float = 60.0
    ):
        super().__init__(transport)
        self.encodes: Callable[[np.dtype], bool] = is_codable
        self._codecs = dict(codecs)
        self._close_timeout_s = close_timeout_s
        self._encoder = SerialExecutor(name=f"encode {transport.rank}")

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array`; messages to a peer with a codec leave one after the other."""
        codec = self._codecs.get(to)
        if codec is None:
            return self._transport.send(array, to=to, tag=tag)

        # In one thread, so that messages of one tag leave in the order of the calls.
        def encode_and_send() -> Sending:
            encoded = _encode(codec, array) if self.encodes(array.dtype) else array
            return self._transport.send(encoded, to=to, tag=tag)

        message = f"{num_bytes_of(array)} bytes to rank {to} with tag {tag}"
        return _EncodedSending(self._encoder.begin(encode_and_send), message)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        codec = self._codecs.get(source)
        if codec is None or not self.encodes(like.dtype):
            return self._transport.receive(like, source=source, tag=tag)
        num_bytes = codec.num_bytes(size=like.size)
        encoded = jax.ShapeDtypeStruct((num_bytes,), np.dtype(np.uint8))
        receiving = self._transport.receive(encoded, source=source, tag=tag)
        return _EncodedReceiving(receiving, codec, like)

    def close(self, *, error: BaseException | None = None) -> None:
        """Close this rank's end; with an `error`, end the whole job and show this error first."""
        if error is None:
            # Encoded messages have to be sent before the wrapped transport closes.
            self.stop(timeout_s=self._close_timeout_s)
        self._transport.close(error=error)

    def stop(self, *, timeout_s: float) -> None:
        """End the encoder thread once it has sent everything; the wrapped transport stays open.

        Raises:
            DeadlineError: it did not end within `timeout_s`.
        """
        self._encoder.close(timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class _EncodedSending:
    started: Future[Sending]
    message: str

    def wait(self, *, timeout_s: float) -> float:
        try:
            sending = self.started.result(timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"timed out after {timeout_s:.1f} s waiting for {self.message} to be encoded"
            ) from error
        except RuntimeError as error:  # from jax: a deleted array, a failed computation
            raise TransportError(f"cannot encode {self.message}: {error}") from error
        return sending.wait(timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class _EncodedReceiving:
    receiving: Receiving
    codec: Codec
    like: jax.ShapeDtypeStruct

    def wait(self, *, timeout_s: float) -> np.ndarray:
        encoded = np.asarray(self.receiving.wait(timeout_s=timeout_s))
        values = self.codec.decode(encoded, size=self.like.size)
        return values.astype(self.like.dtype, copy=False).reshape(self.like.shape)


def _encode(codec: Codec, array: HostOrDeviceArray) -> np.ndarray:
    # float16 and bfloat16 widen without loss; codecs take float32 only.
    values = np.ascontiguousarray(np.asarray(array), np.float32)
    return codec.encode(values.reshape(-1))
