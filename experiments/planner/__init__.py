"""Minimising DT-FM's cost: compared with the published solver, exact search and baselines."""
