"""Restart a run until it is done or hopeless: on this host, or over hosts that come and go.

::

    attempt ──► done, stopped on request, or the input is wrong                    stop
       ├──► stopped for hosts that join, or for a new plan ─► attempt, from that step
       └──► failed ─► hopeless?                                                    stop
              └──► who is there? ─► plan for those ─► attempt, from the newest checkpoint

- `supervisor`: the loop
- `ending`: how an attempt ended; what follows failures: another, with all devices or without some
- `planner`: the plan for the devices that are there
- `next_plan`: the search for it, after the plan before
- `remaining_groups`: groups of devices that ranks can have
- `site`: where attempts run: here; `jaxpipe.run.hosts.hosts_site` is the other one
"""
