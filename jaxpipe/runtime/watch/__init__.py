"""Why a run ends: each rank says where it is, hangs are found, and the cause stays in a file.

::

    instruction ──► Watch ──► watch/rank-3.json     every rank, five times a second
                      │
                      └ overdue: read all pulses ──► find_culprit ──► cause.json, end the job
"""

from jaxpipe.runtime.watch.cause import Cause, CauseKind, clear_cause, read_cause, write_cause
from jaxpipe.runtime.watch.culprit import Verdict, find_culprit
from jaxpipe.runtime.watch.deadline import Deadlines
from jaxpipe.runtime.watch.ended import clear_ended, has_ended, mark_ended
from jaxpipe.runtime.watch.pulse import Pulse, read_pulses
from jaxpipe.runtime.watch.waiting import waits_for
from jaxpipe.runtime.watch.watch import Seen, Watch

__all__ = [
    "Cause",
    "CauseKind",
    "Deadlines",
    "Pulse",
    "Seen",
    "Verdict",
    "Watch",
    "clear_cause",
    "clear_ended",
    "find_culprit",
    "has_ended",
    "mark_ended",
    "read_cause",
    "read_pulses",
    "waits_for",
    "write_cause",
]
