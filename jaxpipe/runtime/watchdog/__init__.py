"""Hang detection: heartbeats of all ranks, the rank that blocks the others, the cause in a file.

::

    instruction ──► Watchdog ──► watch/rank-3.json      every rank, five times a second
                       │
                       └ overdue: read all heartbeats ──► find_culprit ──► cause.json, end the job

- `watchdog`: the thread of one rank; `deadlines`: how long its instructions may take
- `connections`: whether messages arrive while a rank waits, by the counts of the kernel
- `heartbeat`: the file of one rank, `culprit`: the rank at the end of the chain of waits
- `cause`: why the run has ended, for the terminal and for `jaxpipe run`
- `heartbeat_exchange`: both as messages, between ranks that share no folder
- `process_state`: whether a rank's process runs, is stopped, or has died, as its own host sees it
- `silence`: whether a rank that sends no heartbeat is dead, or slow; `slow_ranks`: what says so
- `other_ranks`: the heartbeats of all ranks, and what follows from them
- `rank_start`: before the first heartbeat, for the launcher: ranks that do not start MPI in time
- `stopped_ranks`: for the launcher: ranks that are stopped in any phase, or all of them
- `of_job`: the watchdog of a rank of a job, and the ranks that each instruction waits for
"""

from jaxpipe.runtime.watchdog.cause import (
    Cause,
    CauseKind,
    clear_cause,
    clear_ended,
    has_ended,
    mark_ended,
    read_cause,
    write_cause,
)
from jaxpipe.runtime.watchdog.culprit import Verdict, explain, find_culprit
from jaxpipe.runtime.watchdog.deadlines import Deadlines
from jaxpipe.runtime.watchdog.heartbeat import (
    Heartbeat,
    clear_heartbeats,
    have_begun,
    read_heartbeats,
)
from jaxpipe.runtime.watchdog.watchdog import Seen, Watchdog

__all__ = [
    "Cause",
    "CauseKind",
    "Deadlines",
    "Heartbeat",
    "Seen",
    "Verdict",
    "Watchdog",
    "clear_cause",
    "clear_ended",
    "clear_heartbeats",
    "explain",
    "find_culprit",
    "has_ended",
    "have_begun",
    "mark_ended",
    "read_cause",
    "read_heartbeats",
    "write_cause",
]
