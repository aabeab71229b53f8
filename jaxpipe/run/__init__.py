"""The life of a run: prepare it, launch its ranks, train as one of them, restart after a failure.

::

    supervise      restarts: attempt ─► failed ─► attempt from the newest checkpoint
      └─ start     launcher: prepare (plan.toml, checks) ─► mpirun
           └─ rank       one process: transport, plan ─► train_rank, or paced
                └─ train_rank      signals, on_hang, report; survivors: next_plan

Only what needs no jax is exported here; `jaxpipe.run.rank` imports jax and MPI.
"""

from jaxpipe.run.start import TrainRequest, check_training, start_training
from jaxpipe.run.supervise.ending import Attempt, Ending, EndKind
from jaxpipe.run.supervise.giving_up import Decision, decide
from jaxpipe.run.supervise.planner import Planned, Planner
from jaxpipe.run.supervise.site import ThisHost
from jaxpipe.run.supervise.supervisor import Run, supervise

__all__ = [
    "Attempt",
    "Decision",
    "EndKind",
    "Ending",
    "Planned",
    "Planner",
    "Run",
    "ThisHost",
    "TrainRequest",
    "check_training",
    "decide",
    "start_training",
    "supervise",
]
