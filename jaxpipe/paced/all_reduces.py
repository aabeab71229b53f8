"""All-reduces of a paced rank: the messages of a simulated step, or those of the runtime."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

import numpy as np

from jaxpipe.collective import AllReduceKind, Collective, SyncTree
from jaxpipe.comm import AllReduceHandle, Transport, WireFormat, all_reduce
from jaxpipe.comm.collective.async_all_reduce import ArrayT
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.errors import DeadlineError
from jaxpipe.paced.collective_part import CollectiveExchange
from jaxpipe.paced.paced_transport import PacedTransport
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.virtual_clock import VirtualClock


class RuntimeAllReduces:
    """The runtime's own all-reduces: those of a tag in a thread with a virtual time of its own.

    As `AsyncAllReduce` begins them: different tags run concurrently.
    """

    def __init__(self, transport: Transport, paced: PacedTransport, pace: VirtualClock) -> None:
        """`transport` is `paced`, or one around it."""
        self.errors: dict[int, np.ndarray] = {}
        self._transport, self._paced, self._pace = transport, paced, pace
        self._threads: dict[int, SerialExecutor] = {}

    def begin(
        self,
        array: ArrayT,
        tree: SyncTree,
        *,
        tag: int,
        timeout_s: float,
        algorithm: AllReduceKind = AllReduceKind.TREE,
        wire: WireFormat | None = None,
    ) -> AllReduceHandle[ArrayT]:
        """Begin the all-reduce of `array` over the ranks of `tree`, and return at once."""
        pending = _Pending[ArrayT](pace=self._pace, tag=tag)
        # Taken here: the thread has a virtual time of its own.
        begun_s = self._pace.now()

        def work() -> None:
            # The thread continues at the virtual time of the call, not at that of its last work.
            self._pace.reach(begun_s)
            self._paced.join(tag=tag)
            try:
                total = all_reduce(
                    self._transport,
                    array,
                    tree,
                    tag=tag,
                    timeout_s=timeout_s,
                    algorithm=algorithm,
                    wire=wire,
                )
            # For the waiter; raised again, it also stops the all-reduces that follow.
            except BaseException as error:
                pending.future.set_exception(error)
                raise
            pending.end(total, self._pace.now())

        if tag not in self._threads:
            name = f"reduce {self._transport.rank}, tag {tag}"
            self._threads[tag] = SerialExecutor(name=name)
        self._threads[tag].begin(work)
        return pending

    def close(self, *, timeout_s: float) -> None:
        """End the threads once all of them are complete."""
        for thread in self._threads.values():
            thread.close(timeout_s=timeout_s)


class MessageAllReduces:
    """Sends the messages of simulated collectives, each once those that it waits for have arrived.

    `collectives` are those of which this rank is a member, by tag. Nothing is added: an all-reduce
    returns its argument.
    """

    def __init__(
        self,
        paced: PacedTransport,
        pace: VirtualClock,
        *,
        collectives: Mapping[int, Collective],
        scale: Scale,
    ) -> None:
        self.errors: dict[int, np.ndarray] = {}
        self._paced, self._pace = paced, pace
        self._collectives = collectives
        self._scale = scale

    def begin(
        self,
        array: ArrayT,
        tree: SyncTree,  # noqa: ARG002
        *,
        tag: int,
        timeout_s: float,
        algorithm: AllReduceKind = AllReduceKind.TREE,  # noqa: ARG002
        wire: WireFormat | None = None,  # noqa: ARG002
    ) -> AllReduceHandle[ArrayT]:
        """Begin the collective with this tag, and return at once; other arguments are ignored.

        Without such a collective there are no messages.
        """
        pending = _Pending[ArrayT](pace=self._pace, tag=tag)
        if tag not in self._collectives:
            pending.end(array, self._pace.now())
            return pending
        CollectiveExchange(
            collective=self._collectives[tag],
            transport=self._paced,
            pace=self._pace,
            scale=self._scale,
            tag=tag,
            timeout_s=timeout_s,
            done=partial(pending.end, array),
            failed=pending.future.set_exception,
        ).begin()
        return pending

    def close(self, *, timeout_s: float) -> None:
        """Do nothing: all of them have been waited for."""


@dataclass(slots=True, kw_only=True)
class _Pending(Generic[ArrayT]):
    """An all-reduce in progress; its waiter continues at the virtual time of its end."""

    pace: VirtualClock
    tag: int
    future: Future[ArrayT] = field(default_factory=Future)
    end_s: float = 0.0

    def end(self, total: ArrayT, end_s: float) -> None:
        """Complete it at virtual time `end_s`."""
        self.end_s = end_s
        # Callbacks of the future act at the time of the end, not at that of this thread.
        with self.pace.at(end_s):
            self.future.set_result(total)

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum."""
        try:
            total = self.future.result(timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"timed out after {timeout_s:.1f} s waiting for the all-reduce with tag {self.tag}"
            ) from error
        self.pace.reach(self.end_s)
        return total
