"""Abort a job whose ranks survive each other, by ending its launcher.

With ULFM, Open MPI treats `MPI_Abort` as the loss of one more rank: the others continue, and mpirun
waits indefinitely for a stopped one. The launcher, which is the parent of each rank, ends them all.
"""

import os
import signal
import time
from typing import NoReturn

_GRACE_S = 1.0


def end_launcher() -> NoReturn:
    """Send SIGTERM to the launcher, the parent of this process, and exit."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(_GRACE_S)  # the launcher ends this rank meanwhile
    os._exit(1)
