"""Generators of plans for the search: each yields plans to try, with a lower bound or 0."""
