"""Keeps a run going: it is started again after a failure, with fewer ranks where some are gone.

::

    attempt ──► ended? ──► done, told to stop, or the input is wrong          stop
                  └──► failed ──► from the newest intact checkpoint ──► attempt
                            └──► twice at the same step ──► fewer ranks, a new plan
"""

from jaxpipe.supervise.attempt import Attempt, Ending, EndKind
from jaxpipe.supervise.decide import Decision, decide
from jaxpipe.supervise.smaller import smaller, within
from jaxpipe.supervise.supervise import Run, supervise

__all__ = [
    "Attempt",
    "Decision",
    "EndKind",
    "Ending",
    "Run",
    "decide",
    "smaller",
    "supervise",
    "within",
]
