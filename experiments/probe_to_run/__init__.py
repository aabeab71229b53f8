"""A prediction checked end to end, over links that the planner knows from a probe alone."""
