"""The sums of a rank that is paced: those of a job as messages, or the runtime's own."""

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
from jaxpipe.paced.collective_part import Exchange
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.transport import PacedTransport
from jaxpipe.paced.virtual_clock import VirtualClock


class RuntimeAllReduces:
    """Sums by the runtime's own all-reduces, in a thread that is due for itself."""

    def __init__(self, transport: Transport, paced: PacedTransport, pace: VirtualClock) -> None:
        """`transport` is `paced`, or one around it."""
        self.errors: dict[int, np.ndarray] = {}
        self._transport, self._paced, self._pace = transport, paced, pace
        self._thread = SerialExecutor(name=f"reduce {transport.rank}")

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
        """Begin to sum `array` over the ranks of `tree`, and return at once."""
        begun = _Begun[ArrayT](pace=self._pace, tag=tag)
        begun_s = self._pace.now()

        def work() -> None:
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
            except BaseException as error:
                begun.future.set_exception(error)
                raise
            begun.end(total, self._pace.now())

        self._thread.begin(work)
        return begun

    def close(self, *, timeout_s: float) -> None:
        """End the thread once all is summed."""
        self._thread.close(timeout_s=timeout_s)


class MessageAllReduces:
    """Sends the messages of a job's collectives, each as soon as those that it waits for are there.

    `collectives` are those in which this rank has a part, by the tag of their sum. Nothing is added
    up: a sum returns what was given to it.
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
        """Begin the collective with this tag, and return at once; what else is said is ignored."""
        begun = _Begun[ArrayT](pace=self._pace, tag=tag)
        Exchange(
            collective=self._collectives[tag],
            transport=self._paced,
            pace=self._pace,
            scale=self._scale,
            tag=tag,
            timeout_s=timeout_s,
            done=partial(begun.end, array),
            failed=begun.future.set_exception,
        ).begin()
        return begun

    def close(self, *, timeout_s: float) -> None:
        """Do nothing: all sums have been waited for."""


@dataclass(slots=True, kw_only=True)
class _Begun(Generic[ArrayT]):
    """A sum under way; who waits for it is due when it was over."""

    pace: VirtualClock
    tag: int
    future: Future[ArrayT] = field(default_factory=Future)
    end_s: float = 0.0

    def end(self, total: ArrayT, end_s: float) -> None:
        """Note that it is over, in the name of a thread that is due then."""
        self.end_s = end_s
        with self.pace.at(end_s):
            self.future.set_result(total)

    def wait(self, *, timeout_s: float) -> ArrayT:
        """Return the sum."""
        try:
            total = self.future.result(timeout_s)
        except TimeoutError as error:
            words = f"timed out after {timeout_s:.1f} s waiting for the sum with tag {self.tag}"
            raise DeadlineError(words) from error
        self.pace.reach(self.end_s)
        return total
