"""A run over hosts that come and go: ranks on the hosts of the plan, joins, hosts that are lost.

::

    jaxpipe run --hosts ──► attempt: mpirun, over ssh ──► attempt with other hosts ──► ...
                                 ▲                    │
    jaxpipe join ─► desk ────────┘                    ├ asked to stop after a step: a host joins
                    the host answers: a new plan      └ failed: the hosts that answer are left
"""
