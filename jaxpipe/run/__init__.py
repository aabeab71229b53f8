"""The life of a run: prepare it, launch its ranks, train as one of them, restart after a failure.

::

    supervise      restarts: attempt ─► failed ─► attempt from the newest checkpoint
      └─ start     launcher: prepare (plan.toml, checks) ─► mpirun
           └─ rank       one process: transport, plan ─► train_rank, or paced
                └─ train_rank      signals, on_hang, report; survivors: smaller_plan

Only what needs no jax is exported here; `jaxpipe.run.rank` imports jax and MPI.
"""

from jaxpipe.run.smaller_plan import smaller, within
from jaxpipe.run.start import TrainRequest, check_training, start_training
from jaxpipe.run.supervise import Attempt, Decision, Ending, EndKind, Run, decide, supervise

__all__ = [
    "Attempt",
    "Decision",
    "EndKind",
    "Ending",
    "Run",
    "TrainRequest",
    "check_training",
    "decide",
    "smaller",
    "start_training",
    "supervise",
    "within",
]
