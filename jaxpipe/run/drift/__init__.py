"""Drift: links that have become slower than planned, and the plan that they ask for.

::

    reports of links ─► judge ─► slow links ─► one line
                                     └─► corrected cluster ─► planner, a process of its own
                                                                  └─► the command, or a restart

- `slow_links`: holds what was measured against the plan's links
- `corrected`: the cluster with its slow links as they were measured
- `replan`: simulates the present plan over that cluster, and searches a new one
- `watch`: does this beside the training of rank 0
- `hand_over`: from the run that stops to the one that continues with the new plan
"""
