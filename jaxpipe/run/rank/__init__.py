"""What one rank of a run does, from its start to its end; a run in one process is a single rank.

::

    run_rank     transport ─► plan ─┬─ train_rank   signals, on_hang; survivors train on
      └─ apart   hosts without      └─ paced        waits as long as computing would take
                 a common folder
    threads      all ranks in this process, from Python
"""
