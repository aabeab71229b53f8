"""A signal that is blocked in a child process, and acted upon by its parent while it is pending.

Open MPI's `mpirun` kills its ranks 0.2 s after a SIGTERM, and no option changes that (5.0; earlier
versions had `odls_base_sigkill_timeout`). But a process that starts with the signal blocked never
receives it, and Linux shows that it is pending: the parent of `mpirun` acts on it instead.
"""

import signal
import sys
from pathlib import Path


def is_supported() -> bool:
    """Return whether this system shows the pending signals of other processes."""
    return sys.platform == "linux"


def block(number: int) -> None:
    """Block a signal in this process, also after it has replaced its program (`exec`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def is_pending(process: int, number: int) -> bool:
    """Return whether a signal is pending for a process; False once that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    # ShdPnd is a bit mask in hexadecimal, signal 1 lowest; "shared" is for the whole process.
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)
