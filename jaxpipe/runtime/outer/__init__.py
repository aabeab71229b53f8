"""The outer loop at run time: islands that train apart, and their outer steps.

- `job_part`: an island as a job of its own
- `outer_buckets`, `outer_exchange`: what is exchanged, and its messages
- `outer_loop`: the state of the outer optimizer, and its steps
- `outer_snapshot`: all of it in checkpoints

The mathematics is in `jaxpipe.outer`.
"""
