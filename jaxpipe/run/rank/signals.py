"""On SIGTERM, SIGUSR1 or Ctrl-C, stop after the current step and save a checkpoint.

::

    SIGTERM, SIGUSR1, SIGINT ─► socket ─► thread ─┬─ nothing is trained yet, a rank is lost, or a
                                                  │  second Ctrl-C: exit now
                                                  ├─ the last step is saved: end as without it
                                                  └─ else: stop after the step, with a checkpoint

The main thread may be inside MPI or XLA, where Python runs no signal handler: the wake-up socket
reaches another thread at once.

Launchers also send SIGTERM to the surviving ranks when one was killed. The step can then not be
finished, and a rank that waits for it delays the next attempt until it is killed, 0.25 s with Open
MPI.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

from jaxpipe.runtime.watchdog import Watchdog

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_ONE_REQUEST_S = 0.5


@contextmanager
def stop_on_signal(
    watch: Callable[[], Watchdog], *, is_launched: bool = True
) -> Iterator[list[int]]:
    """Let a signal stop the run after the step, with a checkpoint; for the main thread.

    `watch` returns the current watchdog, which a recovery from a lost rank replaces. Yields the
    list of the signals received. A rank that is ended at once exits with 1 if it `is_launched`,
    since its launcher reports the signal; else with 128 plus the signal.
    """
    received: list[int] = []
    receiver, sender = socket.socketpair()
    sender.setblocking(False)  # as `set_wakeup_fd` demands
    listener = _Listener(watch=watch, received=received, is_launched=is_launched)
    thread = Thread(target=listener.run, args=(receiver,), name="stop on signal", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # Handlers that do nothing: without any, the default would end the process.
    previous = {number: signal.signal(number, _leave_to_thread) for number in _SIGNALS}
    try:
        yield received
    finally:
        # In this order: no signal may be written to a socket that is closed.
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        sender.close()  # ends the thread
        thread.join()
        receiver.close()


def _leave_to_thread(*_: object) -> None:
    """Do nothing: the wake-up socket has reached the thread."""


@dataclass(slots=True, kw_only=True)
class _Listener:
    """Acts on the signals of a rank, in a thread of its own."""

    watch: Callable[[], Watchdog]
    received: list[int]
    is_launched: bool
    _first_interrupt_s: float | None = None

    def run(self, receiver: socket.socket) -> None:
        """Act on the signals whose numbers the socket delivers, until it is closed."""
        while numbers := receiver.recv(64):
            for number in filter(_SIGNALS.__contains__, numbers):
                self._act(number)

    def _act(self, number: int) -> None:
        self.received.append(number)
        watch = self.watch()
        is_repeated = self._is_repeated(number)
        if watch.is_finished and not is_repeated:
            return  # all is saved: traces and the report take seconds
        is_hopeless = not watch.is_watching or watch.has_lost_a_rank()
        # A SIGUSR1 may come early: it asks for a checkpoint, and is answered after one step.
        if (is_hopeless and number != signal.SIGUSR1) or is_repeated:
            os._exit(1 if self.is_launched else 128 + number)
        watch.stop_requested = True

    def _is_repeated(self, number: int) -> bool:
        """Return whether this is a second Ctrl-C."""
        if number != signal.SIGINT:
            return False
        now_s = time.monotonic()
        if self._first_interrupt_s is None:
            self._first_interrupt_s = now_s
        return now_s - self._first_interrupt_s >= _ONE_REQUEST_S
