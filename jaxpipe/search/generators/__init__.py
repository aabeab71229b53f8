"""Generators of plans for the search: each yields plans to try."""
