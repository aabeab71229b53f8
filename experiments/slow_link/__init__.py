"""Experiment: a link that drops to a tenth while a run trains over it."""
