"""DT-FM's published comparison once more: simulated, emulated with paced compute, and real."""
