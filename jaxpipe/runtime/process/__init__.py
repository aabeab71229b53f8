"""Processes of ranks: `mpirun`, affinity, GPUs, exit causes, and the checks before a run."""
