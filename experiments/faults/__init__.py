"""Fault-injection results."""
