"""DT-FM's published comparison: simulated, emulated with paced compute, and measured."""
