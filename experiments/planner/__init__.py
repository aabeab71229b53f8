"""DT-FM's cost, minimised: against the published solver, exact search, and plain placements."""
