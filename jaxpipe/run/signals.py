"""How a rank hears that the run is to stop, whatever its main thread is at.

::

    SIGTERM, SIGUSR1 ──► socket ──► thread ──┬─ nothing is trained yet, or a rank is gone: end now
                                             └─ else: stop after the step, with a checkpoint

Launchers send SIGTERM to the others, too, when a rank was killed. There is no step to end then, and
whoever stays for one delays the next attempt until it is killed: 0.25 s with Open MPI.
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
    """Let a signal end the run after the step, with a checkpoint; for the main thread.

    `watch` returns the one of now: there is another when ranks go on without one that was lost.
    """
    hearing, telling = socket.socketpair()
    telling.setblocking(False)
    thread = Thread(target=_hear, args=(hearing, watch), name="told to stop", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, _leave_to_thread) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        telling.close()
        thread.join()
        hearing.close()


def _leave_to_thread(*_: object) -> None:
    """Do nothing: the thread has been woken."""


def _hear(hearing: socket.socket, watch: Callable[[], Watchdog]) -> None:
    while numbers := hearing.recv(64):
        if not set(numbers) & set(_SIGNALS):
            continue
        here = watch()
        if signal.SIGTERM in numbers and (not here.is_watching or here.has_lost_a_rank()):
            os._exit(1)
        here.stop_requested = True
