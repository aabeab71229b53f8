"""What one rank of a run does, from its start to its end; a run in one process is a single rank.

::

    start_rank    a process: cores, devices, compile cache, before jax and MPI start
      └─ run_rank     transport ─► plan ─┬─ train_rank   signals, on_hang; survivors train on
           │                             └─ paced        waits as long as computing would take
           └─ receive_plan    ranks that no launcher of ours has started
    threads       a thread per rank of this process, from Python
"""
