"""Generators of schedules: compute instructions only, in the order of each published scheme."""
