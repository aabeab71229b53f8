"""Measures a network: which pairs talk in which round, their messages, and the cluster they make.

Only `measure` knows MPI.
"""
