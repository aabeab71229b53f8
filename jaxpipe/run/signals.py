"""On SIGTERM or SIGUSR1, stop after the current step and save a checkpoint.

::

    SIGTERM, SIGUSR1 ──► socket ──► thread ──┬─ nothing is trained yet, or a rank is lost: exit now
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from jaxpipe.runtime.watchdog import Watchdog

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_on_signal(watch: Callable[[], Watchdog]) -> Iterator[None]:
    """Let a signal stop the run after the step, with a checkpoint; for the main thread.

    `watch` returns the current watchdog, which a recovery from a lost rank replaces.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)  # as `set_wakeup_fd` demands
    thread = Thread(target=_listen, args=(receiver, watch), name="stop on signal", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # Handlers that do nothing: without any, the default would end the process.
    previous = {number: signal.signal(number, _leave_to_thread) for number in _SIGNALS}
    try:
        yield
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


def _listen(receiver: socket.socket, watch: Callable[[], Watchdog]) -> None:
    while numbers := receiver.recv(64):
        if not set(numbers) & set(_SIGNALS):  # SIGINT comes here, too
            continue
        current = watch()
        # SIGUSR1 never ends a rank at once: launchers send it ahead of a time limit.
        if signal.SIGTERM in numbers and (not current.is_watching or current.has_lost_a_rank()):
            os._exit(1)
        current.stop_requested = True
