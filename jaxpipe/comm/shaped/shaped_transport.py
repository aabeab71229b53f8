"""Shaped transport: delays the messages of an inner transport as emulated links would.

The inner transport sends the payload at once. An empty message, the token, follows when the
emulated link would have delivered the last byte, and the receiver waits for both. So the time that
the bytes really take is hidden behind the emulated time, only the sender's clock is read, and no
privileges are needed::

    sender     payload ───────────────┐          token ─┐
                 │ wait │ bytes / bandwidth │ latency │ │
    receiver            └► payload is here              └► wait returns
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from threading import Event, Lock

import jax
import numpy as np

from jaxpipe.comm.buffer import is_ready, num_bytes_of
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.message_timing import MessageTiming, Times, timing_of
from jaxpipe.comm.shaped.shaped_links import links_of_rank
from jaxpipe.comm.shaped.timer import Timer
from jaxpipe.comm.tags import MAX_TAG, TOKEN_TAG
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport
from jaxpipe.errors import DeadlineError
from jaxpipe.topo import Cluster

_TOKEN = np.empty(0, np.uint8)
_LIKE_TOKEN = jax.ShapeDtypeStruct((0,), np.dtype(np.uint8))
_SHORTEST_PAUSE_S = 5e-5
_LONGEST_PAUSE_S = 1e-3

_Channel = tuple[int, int, int]


class ShapedTransport:
    """Emulates the links of a cluster: a message takes at least as long as on the links there.

    Rank `r` runs on the device `devices[r]`; `scale` multiplies latencies and seconds per byte. A
    message occupies its link from the moment when its array is computed, which is noticed within a
    millisecond, in the order of the computation; `Sending.wait` returns once its last byte has left
    the link. `jaxpipe.comm.shaped.shaped_links` says which sharing of NICs is exact. The native
    all-reduces of the inner transport would bypass the links, so they are not offered.

    An asymmetric link makes a clock offset that is measured over it (`clock_offset`) wrong by half
    of the difference of the latencies, as a real one does.

    >>> from jaxpipe import topo
    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     shaped = ShapedTransport(transport, topo.load("two-region"), devices=(0, 2))
    ...     start_s, like = time.perf_counter(), jax.ShapeDtypeStruct((3,), np.float32)
    ...     receiving = shaped.receive(like, source=1 - shaped.rank, tag=0)
    ...     shaped.send(np.ones(3, np.float32), to=1 - shaped.rank, tag=0)
    ...     receiving.wait(timeout_s=5.0)
    ...     shaped.close()
    ...     return time.perf_counter() - start_s >= 0.011  # the latency from Ohio to Virginia
    >>> run_ranks(2, work)
    [True, True]
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        *,
        devices: Sequence[int],
        scale: float = 1.0,
        close_timeout_s: float = 60.0,
    ) -> None:
        assert len(devices) == transport.num_ranks, (devices, transport.num_ranks)
        self._transport = transport
        self._close_timeout_s = close_timeout_s
        self._lock = Lock()
        self._uncomputed: defaultdict[_Channel, deque[_Message]] = defaultdict(deque)
        self._timer = Timer(
            name=f"the emulated links of rank {transport.rank}",
            clock=time.perf_counter,
            failed=self._fail,
        )
        self._links = links_of_rank(self._timer, cluster, devices, rank=transport.rank, scale=scale)

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self._transport.num_ranks

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the rank `to` as soon as it is computed."""
        assert tag <= MAX_TAG, tag
        message = _Message(array, Envelope(self.rank, to, tag, num_bytes_of(array)))
        with self._lock:
            uncomputed = self._uncomputed[message.envelope.channel]
            uncomputed.append(message)
            # Otherwise earlier messages of the channel wait, and a poll for them is pending.
            if len(uncomputed) == 1:
                self._depart_computed(uncomputed)
                if uncomputed:
                    self._poll_again(message.envelope.channel, since_s=time.perf_counter())
        return _ShapedSending(message)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        payload = self._transport.receive(like, source=source, tag=tag)
        token = self._transport.receive(_LIKE_TOKEN, source=source, tag=TOKEN_TAG + tag)
        envelope = Envelope(source, self.rank, tag, num_bytes_of(like))
        return _ShapedReceiving(payload, token, envelope)

    def close(self, *, error: BaseException | None = None) -> None:
        """Close once all messages are delivered; with an `error`, end the whole job at once.

        Raises:
            DeadlineError: the links had not delivered everything after the `close_timeout_s` of
                the constructor.
        """
        if error is None:
            self._timer.close(timeout_s=self._close_timeout_s)  # first: it still sends the tokens
        self._transport.close(error=error)
        self._timer.end()

    def _poll(self, channel: _Channel, *, since_s: float) -> None:
        """Send the messages that are computed by now; poll less often the longer it takes."""
        with self._lock:
            uncomputed = self._uncomputed[channel]
            since_s = time.perf_counter() if self._depart_computed(uncomputed) else since_s
            if uncomputed:
                self._poll_again(channel, since_s=since_s)

    def _poll_again(self, channel: _Channel, *, since_s: float) -> None:
        now_s = time.perf_counter()
        # Pauses grow with the wait: a message is late by an eighth of it at most.
        pause_s = min(max((now_s - since_s) / 8, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        poll = partial(self._poll, channel, since_s=since_s)
        self._timer.at(now_s + pause_s, poll)

    def _depart_computed(self, uncomputed: "deque[_Message]") -> bool:
        """Send the first messages of a channel that are computed; return whether there were any."""
        has_departed = False
        while uncomputed and is_ready(uncomputed[0].array):
            self._depart(uncomputed.popleft())
            has_departed = True
        return has_departed

    def _depart(self, message: "_Message") -> None:
        envelope, now_s = message.envelope, time.perf_counter()
        message.depart(self._transport.send(message.array, to=envelope.to, tag=envelope.tag))
        # Posted at the time before the payload was sent: what that took is no part of the link's.
        message.times.started_s = now_s
        self._timer.at(now_s, self._carry, message)

    def _carry(self, message: "_Message") -> None:
        envelope = message.envelope
        self._links[envelope.to].send(
            envelope.num_bytes,
            partial(self._transport.send, _TOKEN, to=envelope.to, tag=TOKEN_TAG + envelope.tag),
            on_timed=partial(self._leave, message),
        )

    def _leave(self, message: "_Message", leaves_s: float, _arrives_s: float) -> None:
        message.times.over_s = leaves_s
        self._timer.at(leaves_s, message.left.set)

    def _fail(self, error: Exception) -> None:
        """End the job: the receiver of a token that is not sent would wait for it until timeout."""
        self._transport.close(error=error)


class _Message:
    """An outgoing message, from `send` until its last byte has left the link."""

    def __init__(self, array: HostOrDeviceArray, envelope: Envelope) -> None:
        self.array: HostOrDeviceArray = array
        self.envelope = envelope
        self.left = Event()
        self.times = Times()
        self._sending: Sending | None = None

    def depart(self, sending: Sending) -> None:
        """Keep the payload's sending, and release the array."""
        self._sending = sending
        del self.array

    @property
    def sending(self) -> Sending:
        """The payload, which the inner transport is sending."""
        assert self._sending is not None, f"{self.envelope} has not been sent"
        return self._sending


class _ShapedSending:
    __slots__ = ("_message",)

    def __init__(self, message: _Message) -> None:
        self._message = message

    @property
    def timing(self) -> Times:
        return self._message.times

    def wait(self, *, timeout_s: float) -> float:
        start_s = time.perf_counter()
        if not self._message.left.wait(timeout_s):
            raise self._message.envelope.late(waited_s=timeout_s)
        left_s = max(0.0, timeout_s - (time.perf_counter() - start_s))
        return max(self._message.times.over_s, self._message.sending.wait(timeout_s=left_s))


class _ShapedReceiving:
    __slots__ = ("_array", "_envelope", "_payload", "_token")

    def __init__(self, payload: Receiving, token: Receiving, envelope: Envelope) -> None:
        self._payload, self._token, self._envelope = payload, token, envelope
        self._array: HostOrDeviceArray | None = None

    @property
    def timing(self) -> MessageTiming | None:
        return timing_of(self._token)  # which arrives when the emulated link has delivered

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        start_s = time.perf_counter()
        if self._array is None:  # the payload can be received only once
            self._array = self._payload.wait(timeout_s=timeout_s)
        left_s = max(0.0, timeout_s - (time.perf_counter() - start_s))  # one deadline for both
        try:
            self._token.wait(timeout_s=left_s)
        except DeadlineError as error:
            raise self._envelope.late(waited_s=timeout_s) from error
        return self._array
