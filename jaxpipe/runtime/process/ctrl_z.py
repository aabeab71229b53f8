"""Ctrl-Z does not suspend a run: its ranks watch each other by the clock, and so do MPI's waits.

A suspended launcher would stop reading the output of its ranks, which block when the pipe is full.
Ranks that were suspended with it would find each other overdue as soon as they continue. So
SIGTSTP is answered with a line that names what does work. `kill -STOP` stops a process as ever.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LINE = (
    b"\njaxpipe: a run cannot be suspended, and continues; Ctrl-C saves a checkpoint and stops, "
    b"`--resume` continues from it\n"
)


@contextmanager
def not_suspended() -> Iterator[None]:
    """Answer Ctrl-Z with a line, within the block and in the main thread.

    Processes that are started meanwhile have the default again, unless they ask for this, too. A
    signal that is ignored stays ignored, as a shell without job control sets it.
    """
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        yield
        return
    previous = signal.signal(signal.SIGTSTP, _answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)


def _answer(*_: object) -> None:
    with suppress(OSError):
        # Not `print`: a handler may interrupt one that is under way.
        os.write(2, _LINE)
