"""Drift: links that have become slower than planned, and the plan that they ask for.

::

    reports of links ─► judge ─► slow links ─► one line
                                     └─► corrected cluster ─► planner, a process of its own
                                                                  └─► step times, and the command

- `slow_links`: compares what was measured with the plan's links, and corrects the cluster
- `replan`: simulates the present plan over that cluster, and searches a new one
- `search_process`: the process of the search
- `new_plan`: what the search has found, and its adoption by the run
- `watch`: does this beside the training of rank 0
"""
