"""Drift: links that have become slower than planned, and the plan that they ask for.

::

    reports of links ─► judge ─► slow links ─► one line
                                     └─► corrected cluster ─► planner, a process of its own
                                                                  └─► step times, and the command

- `slow_links`: holds what was measured against the plan's links
- `corrected`: the cluster with its slow links as they were measured
- `replan`: simulates the present plan over that cluster, and searches a new one
- `search_process`: the process of the search
- `watch`: does this beside the training of rank 0
"""
