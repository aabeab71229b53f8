"""Proposals: a plan for a model on a cluster, found by the search with the simulator.

Nothing is imported here: `--help` needs only `jaxpipe.propose.options`, which imports fast.
"""
