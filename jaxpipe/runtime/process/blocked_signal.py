"""A signal that is held back from a process, and seen to wait there.

Open MPI's `mpirun` kills its ranks 0.2 s after a SIGTERM, and nothing changes that (5.0; before, it
was `odls_base_sigkill_timeout`). But a process that begins with the signal blocked never gets it,
and Linux tells who asks that it waits: so whoever started `mpirun` does what the signal asks for.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

_LOOKS_EVERY_S = 0.1


def can_hold() -> bool:
    """Return whether this system tells which signals wait for a process."""
    return sys.platform == "linux"


def hold(number: int) -> None:
    """Block a signal, for this process and for what it becomes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def is_held(process: int, number: int) -> bool:
    """Return whether a signal waits for a process; False once that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    waiting = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(waiting) and bool(int(waiting[0], 16) >> (number - 1) & 1)


def call_when_held(process: int, number: int, call: Callable[[int], object]) -> Event:
    """Call once with a signal, in a thread, when it waits for a process.

    Setting the event that this returns ends it.
    """
    ended = Event()

    def look() -> None:
        while not ended.wait(_LOOKS_EVERY_S):
            if is_held(process, number):
                call(number)
                return

    Thread(target=look, name=f"looks for signal {number}", daemon=True).start()
    return ended
