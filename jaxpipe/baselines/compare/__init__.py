"""Comparison of the pipeline with SPMD systems: same model, data, optimizer and ranks, one table.

Nothing is imported here: `--help` needs only `jaxpipe.baselines.compare.system`, which imports
fast.
"""
