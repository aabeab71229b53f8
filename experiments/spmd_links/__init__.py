"""The pipeline compared with SPMD programs over links shaped by the kernel."""
