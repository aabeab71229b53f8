"""The life of a run. Nothing is imported here: `threads` takes jax, `forecast` does not.

Keeps a run going: it is started again after a failure, with fewer ranks where some are gone.

::

    attempt ──► ended? ──► done, told to stop, or the input is wrong          stop
                  └──► failed ──► from the newest intact checkpoint ──► attempt
                            └──► twice at the same step ──► fewer ranks, a new plan
"""

from jaxpipe.run.smaller_plan import smaller, within
from jaxpipe.run.supervise import Attempt, Decision, Ending, EndKind, Run, decide, supervise

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
