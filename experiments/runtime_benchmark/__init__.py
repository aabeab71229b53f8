"""Benchmarks of the runtime, compared with other systems on the same machine."""
