"""The life of a run: prepare it, launch its ranks, train as one of them, restart after a failure.

::

    supervise, hosts     restarts: attempt ─► failed ─► attempt from the newest checkpoint
      └─ start           launcher: prepare (plan.toml, checks) ─► mpirun
           └─ rank       one process: transport, plan ─► train, or wait as if computing
                └─ drift     links that have become slower, and the plan that they ask for
    folder               what a run reads and leaves       terminal    what it shows
    forecast             what it will take, before it runs

`jaxpipe.run.rank` imports jax and MPI; the launcher's side needs neither.
"""
