"""The life of a run: prepare it, launch its ranks, train as one of them, restart after a failure.

::

    supervise      restarts: attempt ─► failed ─► attempt from the newest checkpoint
      └─ start     launcher: prepare (plan.toml, checks) ─► mpirun
           └─ rank       one process: transport, plan ─► train_rank, or paced
                └─ train_rank      signals, on_hang, report; survivors: next_plan

`jaxpipe.run.rank` imports jax and MPI; the launcher's side needs neither.
"""
