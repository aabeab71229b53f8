"""What a configured run will take, before it runs: seconds, bytes per link, and memory per rank.

::

    simulate_step    the trace of a step, also with measured compute
    prediction       `jaxpipe simulate`: the step, what binds, the load of links
    plan_memory      `jaxpipe show`: the memory of each rank and device
"""
