"""A thread that does one thing after the other, in the order in which they were given to it."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from jaxpipe.errors import DeadlineError

Result = TypeVar("Result")


class SerialExecutor:
    """Calls what it is given, each when the one before has returned.

    After the first error it calls nothing more, and whatever follows fails with that error: others
    who count on the order could not tell what was left out.

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
        """Let the thread call `work`, and return at once."""
        assert not self._is_closed, f"the thread {self._name} was closed"
        future: Future[Result] = Future()

        def call() -> None:
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
        """End the thread once it has done all.

        Raises:
            DeadlineError: it had not after `timeout_s`.
        """
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineError(f"waited {timeout_s:.1f} s in vain for the thread {self._name}")

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
            del call
