"""How a job ends from within where its ranks survive each other.

With ULFM, Open MPI takes `MPI_Abort` for one more lost rank: the others go on, and mpirun waits for
ever for one that is stopped. What ends them all is the launcher, which is the parent of each rank.
"""

import os
import signal
import time
from typing import NoReturn

_SECONDS_TO_BE_ENDED = 1.0


def end_launcher() -> NoReturn:
    """Tell the launcher, whose child this is, to end all its ranks, and end."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(_SECONDS_TO_BE_ENDED)
    os._exit(1)
