"""The computes that a device has been given and has not completed: their bound, and their spans.

A GPU computes what it is given in order, and the call that gives it returns at once. So the host
may be some instructions ahead, and a device does not wait while Python prepares the next one::

    host      forward 0 | forward 1 | wait for room ..... | backward 0 |
    device    [ forward 0 ................. ][ forward 1 ................. ][ backward 0 ...
                                             ▲ span of forward 0 ends, that of forward 1 begins

The host waits where data leaves the process (sends, all-reduces, the scalars of a step), where the
bound is reached, and for the update at the end of a step.
"""

from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax

from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.errors import DeadlineError
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.stage_run import Dispatched
from jaxpipe.schedule import Instruction, describe
from jaxpipe.trace import Lane

_IN_FLIGHT = 4
"""Of a GPU. On an H200, 2 to 8 gave GPT-XL the same tokens/s within 1 %, 1.15 times those of 1, at
the same peak memory (measured). An error or a deadline is found that many instructions behind."""


def instructions_in_flight(platform: str) -> int:
    """Return the bound for a platform of jax: a CPU computes on the cores that the host needs.

    >>> instructions_in_flight("cpu"), instructions_in_flight("gpu")
    (1, 4)
    """
    return 1 if platform == "cpu" else _IN_FLIGHT


class CompletionQueue:
    """At most `in_flight` computes of one rank that are not complete; with 1, each is waited for.

    A thread waits for them, in order, and records a span for each. A span begins when the one
    before it has ended, or with its own call if that came later.
    """

    def __init__(self, recorder: SpanRecorder, *, in_flight: int, timeout_s: float) -> None:
        assert in_flight >= 1, in_flight
        self._recorder = recorder
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self._pending: deque[tuple[Instruction, Future[None]]] = deque()
        self._thread: SerialExecutor | None = None
        self._last_end_s = float("-inf")

    def add(
        self, lane: Lane, instruction: Instruction, dispatched: Dispatched, *, start_s: float
    ) -> None:
        """Add what an instruction has dispatched, in a call that began at `start_s`.

        Returns when fewer than `in_flight` are not complete.

        Raises:
            DeadlineError: the oldest of them is not complete after `timeout_s`.
        """
        if self._in_flight == 1:
            dispatched.wait()
            self._recorder.add(lane, instruction, start_s=start_s, end_s=self._recorder.now())
            return
        complete = partial(self._complete, lane, instruction, start_s, dispatched.marker())
        self._thread = self._thread or SerialExecutor(name="completions")
        self._pending.append((instruction, self._thread.begin(complete)))
        while len(self._pending) >= self._in_flight:
            self._wait_for_oldest()

    def wait(self) -> None:
        """Return when all computes are complete, and their spans recorded.

        Raises:
            DeadlineError: one of them is not complete after `timeout_s`.
        """
        while self._pending:
            self._wait_for_oldest()

    def close(self) -> None:
        """End the thread, once all computes are complete.

        Raises:
            DeadlineError: one of them is not complete after `timeout_s`.
        """
        self.wait()
        if self._thread is not None:
            self._thread.close(timeout_s=self._timeout_s)

    def _complete(self, lane: Lane, instruction: Instruction, start_s: float, marker: Any) -> None:
        jax.block_until_ready(marker)
        start_s, end_s = max(start_s, self._last_end_s), self._recorder.now()
        self._last_end_s = end_s
        self._recorder.add(lane, instruction, start_s=start_s, end_s=end_s)

    def _wait_for_oldest(self) -> None:
        instruction, complete = self._pending.popleft()
        try:
            complete.result(self._timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"timed out after {self._timeout_s:.1f} s waiting for the device to complete "
                f"{describe(instruction)}"
            ) from error
