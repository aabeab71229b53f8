"""Transport from GPU to GPU: NCCL for the messages of the pipeline, another transport for the rest.

Not run between GPUs yet: tests over a fake NCCL cover the order of launches, framing, errors and
deadlines.
"""

import logging
from collections.abc import Collection
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm.buffer import as_bytes, num_bytes_of
from jaxpipe.comm.collective.native import NativeAllReduce, native_of
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.nccl.binding import NcclBinding, NcclChannel
from jaxpipe.comm.nccl.launcher import Launcher, Peer, translated, wait_for
from jaxpipe.comm.nccl.nccl_message import NcclMessage, NcclReceiving, NcclSending
from jaxpipe.comm.tags import NCCL_TAG, NUM_MESSAGE_TAGS
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport

_LIKE_ID = jax.ShapeDtypeStruct((128,), np.dtype(np.uint8))
_ABORT_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class NcclTransport:
    """Messages with the tags of the pipeline, between the `pairs` (all by default), go over NCCL.

    They are received as jax arrays on the device of the rank, in place: NCCL writes into the memory
    of an array that has not been read. All other messages, such as all-reduces on the host, reports
    and clocks, go over `transport`, as do the control messages by which both ends agree on an
    order. Each pair has a communicator and a stream for each direction; a send waits for its array
    by an event on its stream, and the host waits only in `wait`.

    All ranks create it together, with the same pairs. Communicators are created, and used once,
    pair by pair in one order: both steps wait for the other end without a deadline.

    Raises:
        DeadlineError: another rank is missing after `timeout_s`, which also bounds `close`.
        TransportError: NCCL cannot make a communicator.
    """

    def __init__(
        self,
        transport: Transport,
        binding: NcclBinding,
        *,
        pairs: Collection[tuple[int, int]] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._transport, self._binding, self._timeout_s = transport, binding, timeout_s
        if pairs is None:
            pairs = tuple(combinations(range(transport.num_ranks), 2))
        ordered = sorted({(min(pair), max(pair)) for pair in pairs})
        peers = [self._connect(*pair) for pair in ordered if transport.rank in pair]
        self._peers = {peer.rank: peer for peer in peers}
        self._launcher = Launcher(transport, self._peers)

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self._transport.num_ranks

    @property
    def library(self) -> NativeAllReduce | None:
        """The native all-reduce of the other transport: all-reduces are sums of host arrays."""
        return native_of(self._transport)

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to`, as soon as it is computed."""
        if not self._is_ours(to, tag):
            return self._transport.send(array, to=to, tag=tag)
        # NCCL sends device memory only.
        on_device = array if isinstance(array, jax.Array) else jax.device_put(as_bytes(array))
        message = NcclMessage(Envelope(self.rank, to, tag, num_bytes_of(array)), on_device)
        self._launcher.add(message)
        return NcclSending(message)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        if not self._is_ours(source, tag):
            return self._transport.receive(like, source=source, tag=tag)
        envelope = Envelope(source, self.rank, tag, num_bytes_of(like))
        # By default jax has no 64-bit types: such an array travels as bytes, and stays on the host.
        has_dtype = jax.dtypes.canonicalize_dtype(like.dtype) == like.dtype
        memory = (
            jnp.empty(like.shape, like.dtype)
            if has_dtype
            else jnp.empty(envelope.num_bytes, jnp.uint8)
        )
        message = NcclMessage(envelope, memory)
        self._launcher.add(message)
        return NcclReceiving(message, like)

    def close(self, *, error: BaseException | None = None) -> None:
        """End this rank's part together with all others; with an `error`, end the job at once.

        Raises:
            DeadlineError: a send or a rank is missing.
            TransportError: a send failed.
        """
        if error is None:
            # Before `leave`: a peer that has left launches no more receives.
            self._drain()
            # Peers announce their close before anyone destroys a communicator that they still use.
            self._launcher.leave(timeout_s=self._timeout_s)
            self._launcher.stop(timeout_s=self._timeout_s)
            for channel in self._channels():
                with translated("destroy a communicator"):
                    channel.close()
        else:
            # Before `abort`: one thread at a time may call NCCL.
            self._launcher.stop(timeout_s=_ABORT_TIMEOUT_S)
            self._abort_channels()
        self._transport.close(error=error)

    def _is_ours(self, peer: int, tag: int) -> bool:
        return peer in self._peers and tag < NUM_MESSAGE_TAGS

    def _connect(self, low: int, high: int) -> Peer:
        """Create both channels between two ranks, of which this is one, and send a first message.

        The first message of a communicator connects the GPUs, and its launch may wait for the
        other end; so it is sent here, where the order is known.
        """
        # In the same order on both ends, since each step waits for the other end.
        up = self._make_channel(low, high)
        down = self._make_channel(high, low)
        if self.rank == low:
            return Peer(rank=high, to=up, back=down)
        return Peer(rank=low, to=down, back=up)

    def _make_channel(self, source: int, to: int) -> NcclChannel:
        is_sender = self.rank == source
        action = f"connect rank {source} to rank {to}"
        with translated(action):
            if is_sender:
                unique_id = self._binding.unique_id()
                content = np.frombuffer(unique_id, np.uint8)
                assert content.shape == _LIKE_ID.shape, content.shape
                self._transport.send(content, to=to, tag=NCCL_TAG).wait(timeout_s=self._timeout_s)
            else:
                receiving = self._transport.receive(_LIKE_ID, source=source, tag=NCCL_TAG)
                unique_id = np.asarray(receiving.wait(timeout_s=self._timeout_s)).tobytes()
            channel = self._binding.connect(unique_id=unique_id, is_sender=is_sender)
            trial = jnp.zeros(1, jnp.uint8)
            done = channel.send(trial) if is_sender else channel.receive(trial)
            wait_for(done, name=f"NCCL to {action}", timeout_s=self._timeout_s)
        return channel

    def _channels(self) -> list[NcclChannel]:
        """Return all channels of this rank, in the order of their creation."""
        return [
            channel
            for peer in self._peers.values()
            for channel in ((peer.to, peer.back) if self.rank < peer.rank else (peer.back, peer.to))
        ]

    def _abort_channels(self) -> None:
        for channel in self._channels():
            try:
                channel.abort()
            except Exception as error:  # the first error is the one to report
                logger.warning("rank %d could not abort NCCL: %s", self.rank, error)

    def _drain(self) -> None:
        for message in self._launcher.unfinished():
            if message.envelope.source == self.rank:
                message.wait(timeout_s=self._timeout_s)
        for message in self._launcher.unfinished():
            logger.warning("rank %d never received %s", self.rank, message.envelope)
