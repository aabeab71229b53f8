"""Why a run ends: each rank says where it is, hangs are found, and the cause stays in a file.

::

    instruction ──► Watch ──► watch/rank-3.json     every rank, five times a second
                      │
                      └ overdue: read all pulses ──► find_culprit ──► cause.json, end the job
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
from jaxpipe.runtime.watchdog.culprit import Verdict, find_culprit
from jaxpipe.runtime.watchdog.deadline import Deadlines
from jaxpipe.runtime.watchdog.heartbeat import Heartbeat, read_heartbeats
from jaxpipe.runtime.watchdog.wait_graph import waits_for
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
    "find_culprit",
    "has_ended",
    "mark_ended",
    "read_cause",
    "read_heartbeats",
    "waits_for",
    "write_cause",
]
