"""A thread that runs calls one at a time, in the order of their submission."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from jaxpipe.errors import DeadlineError

Result = TypeVar("Result")


class SerialExecutor:
    """Runs submitted calls in a thread of its own, each after the one before has returned.

    After the first error it runs nothing more, and all later calls fail with that error: ranks
    match messages by their order, and a call left out would shift all that follow.

    >>> thread = SerialExecutor(name="adder")
    >>> thread.begin(lambda: 1 + 1).result()
    2
    >>> thread.close(timeout_s=1.0)
    """

    def __init__(self, *, name: str):
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Submit `work`, and return at once."""
        assert not self._is_closed, f"the thread {self._name} was closed"
        future: Future[Result] = Future()

        def call() -> None:
            # Kept for all later calls, whose counterparts on other ranks are now off by one.
            if self._error is None:
                try:
                    future.set_result(work())
                    return
                except BaseException as error:
                    self._error = error
            future.set_exception(self._error)

        self._queue.put(call)
        return future

    def close(self, *, timeout_s: float) -> None:
        """End the thread once all calls have returned.

        Raises:
            DeadlineError: they have not after `timeout_s`.
        """
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineError(
                f"timed out after {timeout_s:.1f} s waiting for the thread {self._name}"
            )

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
            del call  # frees the arrays that it refers to while the queue is empty
