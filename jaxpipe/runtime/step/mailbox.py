"""The messages of one execution of a program: received ahead of their use, sent asynchronously.

A message is identified by its two stages and its microbatch, in the program and on the wire.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax

from jaxpipe.comm import HostOrDeviceArray, Sending, Transport
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.schedule import Instruction, Op, Program
from jaxpipe.trace import Lane

Message = tuple[int, int, int]
"""The source stage, the destination stage and the microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The timeout of each wait, and the number of receives that are posted ahead of their use."""

    timeout_s: float
    receive_ahead: int = 8


@runtime_checkable
class Arriving(Protocol):
    """A receive under way, which returns an array for the computes."""

    def wait(self, *, timeout_s: float) -> HostOrDeviceArray:
        """Return the array.

        Raises:
            DeadlineError: the message did not arrive within `timeout_s`.
            TransportError: the message could not be moved, or the job was aborted.
        """
        ...


@runtime_checkable
class Receive(Protocol):
    """Starts to receive an array, as `jaxpipe.comm.receive_jax` does."""

    def __call__(
        self, transport: Transport, like: jax.ShapeDtypeStruct, *, source: int, tag: int
    ) -> Arriving:
        """Start, and return at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContent:
    """The shape, dtype and sharding of messages; `receive` turns messages into arrays.

    `likes` has those of each boundary, by the number of the stage before it.
    """

    likes: Mapping[int, jax.ShapeDtypeStruct]
    receive: Receive


class Mailbox:
    """Arrays that were received or computed, until they are taken or sent; and the messages.

    An array that one stage of this rank computes for another needs no message: it is put and taken.
    `rank_of` maps a stage of this pipeline, of which there are `num_stages`, to its rank.
    """

    def __init__(
        self,
        program: Program,
        *,
        transport: Transport,
        recorder: SpanRecorder,
        rank_of: Callable[[int], int],
        num_stages: int,
        content: MessageContent,
        timeouts: Timeouts,
    ) -> None:
        self._transport = transport
        self._recorder = recorder
        self._rank_of = rank_of
        self._num_stages = num_stages
        self._content = content
        self._timeouts = timeouts
        self._arrays: dict[Message, HostOrDeviceArray] = {}
        # In the order of the program: `receive` waits for the oldest, whatever its message is.
        self._unposted = deque(i for i in program if i.op is Op.RECEIVE)
        self._posted: deque[Arriving] = deque()
        self._sendings: list[tuple[Instruction, int, float, Sending]] = []
        # A receive that is posted early gets its message without a copy in MPI's own memory; each
        # takes the memory of one activation, so only some are posted.
        for _ in range(timeouts.receive_ahead):
            self._post()

    def put(self, message: Message, array: HostOrDeviceArray) -> None:
        """Keep a computed array until it is sent, or taken by another stage of this rank."""
        self._arrays[message] = array

    def take(self, message: Message) -> HostOrDeviceArray:
        """Return an array that was received, or put by another stage of this rank."""
        return self._arrays.pop(message)

    def send(self, instruction: Instruction) -> None:
        """Start to send an array that was put; it must not change before `finish_sends`."""
        message = _message(instruction)
        array = self._arrays.pop(message)  # the transport refers to it until it is sent
        start_s = self._recorder.now()
        to = self._rank_of(message[1])
        sending = self._transport.send(array, to=to, tag=self._tag(message))
        self._sendings.append((instruction, array.nbytes, start_s, sending))

    def receive(self, instruction: Instruction) -> None:
        """Wait for the next message in the order of the program, and post one more."""
        receiving = self._posted.popleft()
        message = _message(instruction)
        source, num_bytes = self._rank_of(message[0]), _num_bytes(self._like(message))
        with self._recorder.span(Lane.RECEIVE, instruction, peer=source, num_bytes=num_bytes):
            array = receiving.wait(timeout_s=self._timeouts.timeout_s)
        self._arrays[message] = array
        self._post()  # one received, one more posted: the number under way stays

    def finish_sends(self) -> None:
        """Wait until all sends have completed, and record their spans.

        All computes must be recorded: a send is under way from when its array is computed.
        """
        computed_s = self._recorder.computed_s() if self._sendings else {}
        for instruction, num_bytes, posted_s, sending in self._sendings:
            end_s = sending.wait(timeout_s=self._timeouts.timeout_s)
            start_s = max(posted_s, computed_s.get(_message(instruction), posted_s))
            to = self._rank_of(_message(instruction)[1])
            self._recorder.add(
                Lane.SEND, instruction, start_s=start_s, end_s=end_s, peer=to, num_bytes=num_bytes
            )
        self._sendings.clear()

    def _post(self) -> None:
        if self._unposted:
            message = _message(self._unposted.popleft())
            source = self._rank_of(message[0])
            receive, like = self._content.receive, self._like(message)
            self._posted.append(
                receive(self._transport, like, source=source, tag=self._tag(message))
            )

    def _like(self, message: Message) -> jax.ShapeDtypeStruct:
        source, destination, _ = message
        return self._content.likes[min(source, destination)]

    def _tag(self, message: Message) -> int:
        """Return a tag that is unique among the messages between two ranks in one step.

        Small tags leave room for those of collectives, which begin at `ALL_REDUCE_TAG`. The last
        bit is the direction: both neighbours of a stage may be on one rank (interleaved schedules).
        """
        source, destination, microbatch = message
        return 2 * (microbatch * self._num_stages + source) + (source < destination)


def _message(instruction: Instruction) -> Message:
    stage, peer, microbatch = instruction.stage, instruction.peer, instruction.microbatch
    assert peer is not None, instruction
    assert microbatch is not None, instruction
    return (stage, peer, microbatch) if instruction.op is Op.SEND else (peer, stage, microbatch)


def _num_bytes(like: jax.ShapeDtypeStruct) -> int:
    return like.size * like.dtype.itemsize
